// The way back of ep_dispatch.h: results of experts, weighted and added up where the experts are,
// then one row per token and rank to the rank that has the token.
#pragma once

#include "stretto/ops/moe/ep_dispatch.h"

namespace stretto {

struct EpCombineConfig {
  std::int64_t tile_rows = 16;
  int num_workers = 1;  // of each role
};

EpCombineConfig default_combine_config(const EpDesc& desc, Target target = Target::kCpu);

// Extent m. Inputs y [P * S * top_k, hidden], results of the own experts; slots [P * S, top_k] i32,
// the row in y of a token that was received and its expert, or -1 where that is another rank's
// (place.h); recv_weights and positions as ep_dispatch leaves them; residual [ceil(m / P), hidden].
// Output out [ceil(m / P), hidden]: for every own token the sum over the ranks of the weighted sums
// of its experts there, plus residual. Sums are fp32, rounded once to travel, added in rank order
// and rounded again. UserError naming the field of a bad desc or config; at a launch, the table and
// entry that break their contract.
Program ep_combine(const EpDesc& desc, const EpCombineConfig& config);

// m: tokens of all ranks with three of 5 experts each, n: hidden size.
OperatorInfo ep_combine_info();

}  // namespace stretto
