// The way back of ep_send.h: results of experts, weighted and added up where the experts are, then
// one row per token and rank stored at the rank that has the token. That one weighs its own results
// where it adds up the others', so that those are neither stored nor loaded.
#pragma once

#include "stretto/ops/moe/ep_desc.h"
#include "stretto/ops/operator/named_fields.h"
#include "stretto/ops/operator/operator.h"

namespace stretto {

struct ReturnConfig {
  int num_workers = 1;
  int num_sum_workers = 0;       // for the own tokens alone; 0: those that have sent
  int threads = 0;               // in a worker's GPU block; 0: by the resource
  std::int64_t tile_tokens = 1;  // one after the other, and then the other rank is told
  std::int64_t channels = 1;     // parts of the tokens that those who sum alone wait for at a time
  std::int64_t sum_tokens = 0;   // a tile of those who only sum, a part of tile_tokens; 0: all
  int num_slots = 1;             // 2: sums of nothing travel, too, and no rank is asked first
  friend bool operator==(const ReturnConfig&, const ReturnConfig&) = default;
};
NamedFields fields_of(ReturnConfig& config);

// The config that a program really has: as many channels as the own tokens' tiles have, and sums of
// whole parts of a tile. With one rank nothing travels, and fields that say how do not count.
ReturnConfig fitted(const EpDesc& desc, ReturnConfig config);
// docs/performance/exchange.md, 'Why the defaults are what they are', has what was measured.
ReturnConfig default_return_config(const EpDesc& desc, Target target = Target::kCpu);

// Extent m. Inputs y [P * S * top_k, hidden], results of the own experts; slots [P * S, top_k] i32,
// the row in y of a token and its expert, or -1 where that is another rank's (ep_place.h);
// recv_weights and positions as ep_send leaves them; residual [ceil(m / P), hidden]. Weighted sums
// of the own tokens, by rank, come in parts [P, S, hidden]: with one slot symmetric state, of which
// it does not matter what it holds before and after, else buffers that launches use in turn. Output
// out [ceil(m / P), hidden]: the sum over the ranks that a token went to, plus residual. Sums are
// fp32, rounded once to travel, added in rank order and rounded again. UserError naming the field
// of a bad desc or config, or of one that is not as fitted; at a launch, the table and entry that
// break their contract.
Program ep_return(const EpDesc& desc, const ReturnConfig& config);

// m: tokens of all ranks with three of 5 experts each, n: hidden size.
OperatorInfo ep_return_info();

}  // namespace stretto
