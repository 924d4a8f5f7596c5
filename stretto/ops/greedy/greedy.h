// The greedy choice of the next token on the device that computed the logits, so that the next step
// can begin without the host. After the LM head; before the next step's embedding.
#pragma once

#include <cstdint>

#include "stretto/ir/program.h"
#include "stretto/ops/operator/target.h"

namespace stretto {

struct GreedyDesc {
  std::int64_t vocab = 1;       // at most 2^24
  std::int64_t max_tokens = 1;  // capacity of the cache
  int world_size = 1;
};

struct GreedyConfig {
  std::int64_t tile_vocab = 2048;  // logits that a worker compares at a time
  int num_workers = 1;
};
GreedyConfig default_config(const GreedyDesc& desc, Target target);

// logits [1, vocab] f32, the same on every rank; `past`, a run-time scalar: tokens in the cache
// before the step that computed them.
// -> token [1, 1] i32: the index of the largest logit, the lowest one among equals; next_past
//    [1, 2] i32: past + 1 as a little-endian i64; history [max_tokens] i32, state: entry `past`
//    becomes the token, or kNoToken where a logit is NaN or +inf or all are -inf. Then `token` is
//    0, which every vocabulary has.
Program greedy_token(const GreedyDesc& desc, const GreedyConfig& config);

inline constexpr int kNoToken = -1;

}  // namespace stretto
