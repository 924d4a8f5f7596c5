// Attention of one long sequence whose tokens are spread over the ranks, all heads on every rank:
// each rank has the queries, keys and values of its own tokens and makes their output. The keys and
// values of the others come either all at once into a buffer of the rank (sequence_attention) or
// from rank to rank (ring_attention); tiles begin with the own ones, which need nobody, and wait
// for each further part where they come to it.
//
// Placement is zigzag, so that causal attention is the same work everywhere: of 2 P chunks of
// c = ceil(m / 2P) tokens rank r has chunk r in its rows 0 .. c and chunk 2P - 1 - r in c .. 2c.
// Rows of tokens past m are padding, at the end of a chunk. Or contiguous, as shards often are:
// rank r has the one chunk r of ceil(m / P) tokens. Causal attention is then the least work on the
// first rank and the most, (2P - 1) / P times the mean, on the last, for which all wait.
//
// With a window a rank does not wait for a part that none of its tokens sees, and such keys, values
// and queries are not sent, but for those that a ring passes on.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "stretto/ir/program.h"
#include "stretto/ops/operator/named_fields.h"
#include "stretto/ops/operator/operator.h"

namespace stretto {

struct SequenceAttentionDesc {
  DType dtype = DType::kF32;
  std::int64_t m = 1;    // bound of the tokens of all ranks; a launch has 0 <= m <= this
  int num_heads = 1;     // for queries
  int num_kv_heads = 1;  // divides num_heads
  std::int64_t head_dim = 2;
  bool causal = true;                // false: every token sees all; not with a window
  std::int64_t window = 0;           // the last `window` tokens, the own one included; 0: all
  std::optional<double> scale = {};  // for scores; none: 1 / sqrt(head_dim)
  bool lse = false;                  // also the logarithm of each row's sum of weights
  bool contiguous = false;           // else zigzag
  int world_size = 1;
  friend bool operator==(const SequenceAttentionDesc&, const SequenceAttentionDesc&) = default;
};

inline std::int64_t chunks_per_rank(const SequenceAttentionDesc& d) { return d.contiguous ? 1 : 2; }

struct SequenceAttentionConfig {
  std::int64_t tile_rows = 32;  // queries
  std::int64_t tile_kv = 64;    // keys and values per step
  std::int64_t comm_rows = 64;  // tokens of one copy
  int num_workers = 1;
  int num_queues = 1;  // copy queues that send; the ring has one
  int num_slots = 2;   // other ranks whose keys and values there is room for; the ring's alone
  int num_stages = 0;  // blocks of keys and of values loaded ahead; 0: none
  int head_group = 0;  // heads whose tiles are worked on together, divides num_heads; 0: all
  friend bool operator==(const SequenceAttentionConfig&, const SequenceAttentionConfig&) = default;
};
NamedFields fields_of(SequenceAttentionConfig& config);

NamedFields fields_of(SequenceAttentionDesc& desc);
SequenceAttentionConfig default_config(const SequenceAttentionDesc& desc, Target target);
SequenceAttentionConfig default_ring_config(const SequenceAttentionDesc& desc, Target target);
SequenceAttentionConfig default_token_ring_config(const SequenceAttentionDesc& desc, Target target);
// Heads to work on together so that their keys and values of `tokens` stay in a GPU's L2 cache
// (config.head_group). What they cost beyond it is in docs/performance/attention_ranks.md, 'Why
// the defaults are what they are'.
int heads_in_l2(const SequenceAttentionDesc& desc, std::int64_t tokens);

// Extent m; contiguous, S = ceil(m / P) instead of 2c. Inputs q [2c, num_heads * head_dim]; k, v
// [2c, num_kv_heads * head_dim] -> out [2c, num_heads * head_dim]; with lse also lse [num_heads,
// 2c] f32. Copy engines send the own keys and values to every rank, first to the one before this,
// which needs them next. UserError naming the field of a bad desc or config. After Megatron's
// context parallelism (all-gathered keys and values).
Program sequence_attention(const SequenceAttentionDesc& desc,
                           const SequenceAttentionConfig& config);
// The same tensors. Keys and values travel P - 1 steps around the ring through num_slots slots of
// every rank, which takes the parts in the order r, r - 1, ... Where all have a slot each
// (num_slots >= P - 1) a tile of queries goes through them at once; otherwise all tiles go through
// a part before the next one, with sums in memory in between, in fp32, and a slot is written again
// once all workers and the next copy have read it. (Ring attention, Liu et al. 2023; zigzag after
// ring-flash-attention.)
Program ring_attention(const SequenceAttentionDesc& desc, const SequenceAttentionConfig& config);
// The same tensors. Queries go to one rank after another, each of which adds up what its keys and
// values make of them and stores sums, weights and peaks with the rank whose queries they are, so
// that both directions of the links are used; that rank puts the parts together in the order r,
// r + 1, ... Less to send than keys and values only where there are as many heads of them and few
// tokens; sums go in fp32. (TokenRing, Wang et al. 2024.)
Program token_ring(const SequenceAttentionDesc& desc, const SequenceAttentionConfig& config);

OperatorInfo sequence_attention_info();
OperatorInfo ring_attention_info();
OperatorInfo token_ring_info();

}  // namespace stretto
