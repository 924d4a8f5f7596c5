// Attention of few query rows over a cache whose tokens are spread over the ranks, so that a long
// context is read at the bandwidth of all of them (distributed flash decoding).
//
// Tokens lie in blocks: block b is on rank b % P, there the (b / P)-th, so that every rank has as
// many as another, to within a block, at every length. A rank cuts its tokens into runs that
// different workers read at the same time (split-KV, Dao et al., Flash-Decoding, 2023), adds their
// sums up in the order of the runs, and sends one sum per query row to every rank as packets; each
// adds those up in the order of the ranks. So every rank has all rows, with the same bits.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "stretto/ir/program.h"
#include "stretto/ops/operator/named_fields.h"
#include "stretto/ops/operator/operator.h"

namespace stretto {

struct FlashDecodeDesc {
  DType dtype = DType::kF32;
  std::int64_t m = 1;           // bound of the query tokens; a launch has 0 <= m <= this
  std::int64_t max_tokens = 1;  // on all ranks together
  std::int64_t window = 0;      // a row sees the last so many tokens; 0: all
  std::int64_t block = 64;      // tokens that lie on a rank together
  int num_heads = 1;
  int num_kv_heads = 1;  // divides num_heads
  std::int64_t head_dim = 2;
  std::optional<double> scale = {};  // for scores; none: 1 / sqrt(head_dim)
  bool lse = false;                  // also the logarithm of each row's sum of weights
  int world_size = 1;

  std::int64_t tokens_per_rank() const;  // rows of a rank's cache
  friend bool operator==(const FlashDecodeDesc&, const FlashDecodeDesc&) = default;
};

struct FlashDecodeConfig {
  std::int64_t tile_kv = 64;   // tokens per step, divides desc.block
  std::int64_t splits = 1;     // runs of a rank's tokens
  int num_workers = 1;         // that read runs
  int num_combiners = 1;       // that add them up, up to four rows at a time
  int num_stages = 0;          // blocks of keys and of values loaded ahead; 0: none
  std::int64_t tile_rows = 0;  // a KV head's that read a run together; 0: all
  friend bool operator==(const FlashDecodeConfig&, const FlashDecodeConfig&) = default;
};
NamedFields fields_of(FlashDecodeConfig& config);

NamedFields fields_of(FlashDecodeDesc& desc);
// Rows of a KV head, query heads and tokens: the most of a launch, and of a tile.
std::int64_t most_rows(const FlashDecodeDesc& desc);
std::int64_t tile_rows(const FlashDecodeDesc& desc, const FlashDecodeConfig& config);
// docs/performance/attention_ranks.md, 'Why the defaults are what they are', has what was measured.
FlashDecodeConfig default_config(const FlashDecodeDesc& desc, Target target);

// Extent m, scalar tokens (1 .. max_tokens; of the cache, new ones included). With G = num_heads /
// num_kv_heads, row i * G + g of a KV head is query token i and head g of the group. Inputs, q and
// seen the same on every rank: q [num_kv_heads, m * G, head_dim]; seen [m * G, 1] i32, how many of
// the first tokens each row sees, with a window those of the last m tokens; k_cache, v_cache
// [num_kv_heads, tokens_per_rank, head_dim] -> out as q; with lse also lse [m, num_heads] f32, of
// all ranks' tokens, as paged_decode has it. Rows that see nothing are not numbers. UserError
// naming a bad field.
Program flash_decode(const FlashDecodeDesc& desc, const FlashDecodeConfig& config);

OperatorInfo flash_decode_info();

}  // namespace stretto
