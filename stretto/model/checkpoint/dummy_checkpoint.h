// Random weights for a config, so that a model's speed and memory can be measured without its
// checkpoint. What it writes means nothing.
#pragma once

#include <cstdint>

#include "stretto/model/checkpoint/config.h"

namespace stretto {

// Every weight that the config implies, in its dtype (f32 where it names none): norms are 1, all
// else is uniform with a standard deviation of 0.02, as models begin their training. Large tensors
// share memory: it takes no more than the largest. The same for the same seed. UserError where that
// memory is not to be had.
Checkpoint dummy_checkpoint(const ModelConfig& config, std::uint64_t seed = 0);

}  // namespace stretto
