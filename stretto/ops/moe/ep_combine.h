// The way back of ep_dispatch.h: results of experts, weighted and added up where the experts are,
// then one row per token and rank to the rank that has the token.
#pragma once

#include "stretto/ops/moe/ep_dispatch.h"

namespace stretto {

struct EpCombineConfig {
  std::int64_t tile_rows = 16;
  std::int64_t channels = 1;  // parts of a rank's tokens that are summed as soon as they are there
  int num_workers = 1;        // that weigh
  int num_sum_workers = 1;
  int threads = 0;  // of a worker's GPU block; 0: by the resource
};

// What a program of this config is: as many channels as the own tokens' tiles have.
EpCombineConfig fitted(const EpDesc& desc, EpCombineConfig config);
EpCombineConfig default_combine_config(const EpDesc& desc, Target target = Target::kCpu);

// Extent m. Inputs y [P * S * top_k, hidden], results of the own experts; slots [P * S, top_k] i32,
// the row in y of a token that was received and its expert, or -1 where that is another rank's
// (place.h); recv_weights and positions as ep_dispatch leaves them (a token's position is at most
// its number); residual [ceil(m / P), hidden]. Output out [ceil(m / P), hidden]: for every own
// token the sum over the ranks of the weighted sums of its experts there, plus residual. Sums are
// fp32, rounded once to travel, added in rank order and rounded again. UserError naming the field
// of a bad desc or config, or of one that is not as fitted; at a launch, the table and entry that
// break their contract.
Program ep_combine(const EpDesc& desc, const EpCombineConfig& config);

// m: tokens of all ranks with three of 5 experts each, n: hidden size.
OperatorInfo ep_combine_info();

}  // namespace stretto
