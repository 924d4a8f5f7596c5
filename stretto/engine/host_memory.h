// Whether a model fits the host's memory, asked before anything is loaded.
#pragma once

#include <cstddef>

#include "stretto/model/transformer/step_plan.h"

namespace stretto {

// Bytes that the kernel would give out without swapping; the largest size_t where it does not say.
std::size_t available_host_memory();

// UserError unless the weights and caches of all CPU ranks fit what is available.
void check_host_memory(const ModelShape& shape);

}  // namespace stretto
