// Rotary embedding with the KV-cache write, and causal attention over that cache, for one rank's
// heads.
//
// Heads are spread over the ranks in runs of ceil(num_heads / P); a rank keeps the KV heads that
// its query heads need, so a KV head may live on two ranks, and any P works. Heads past the end are
// padding: their queries are zero. m (new tokens) is a run-time extent up to desc.m; `past` (tokens
// already in the cache) a run-time scalar.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "stretto/ir/program.h"
#include "stretto/ops/operator/named_fields.h"
#include "stretto/ops/operator/operator.h"

namespace stretto {

struct AttentionDesc {
  DType dtype = DType::kF32;         // activations and cache
  DType weight_dtype = DType::kF32;  // for the optional head norms
  std::int64_t batch = 1;            // sequences of the same length, one after the other
  std::int64_t m = 1;                // bound of the new tokens, of each sequence
  std::int64_t max_tokens = 1;       // in the cache, past + m <= max_tokens; see attention()
  int num_heads = 1;                 // query heads over all ranks
  int num_kv_heads = 1;              // divides num_heads
  std::int64_t head_dim = 2;         // even
  std::int64_t window =
      0;               // sliding window: the last `window` tokens, the own one included; 0: all
  bool causal = true;  // false: every token sees all past + m; not together with a window
  std::optional<double> scale = {};  // for scores; none: 1 / sqrt(head_dim)
  bool lse = false;        // attention also returns the logarithm of each row's sum of weights
  bool head_norm = false;  // RMSNorm of each query and key head before rotation (Qwen3)
  double norm_eps = 1e-6;
  int world_size = 1;
  friend bool operator==(const AttentionDesc&, const AttentionDesc&) = default;
};

struct AttentionConfig {
  std::int64_t tile_rows = 32;  // query rows
  std::int64_t tile_kv = 64;    // cached tokens per step
  int num_workers = 1;
  int num_stages = 0;   // blocks of keys and of values loaded ahead; 0: none
  int query_slots = 2;  // tiles of queries that there is room for
  bool tickets =
      false;  // tiles to whichever worker is free: even loads where rows differ in length
  // Heads whose tiles are worked on together; divides a rank's query heads; 0: all. In rope the
  // heads of queries, or of keys and values, that a tile has; divides the KV heads, too; 0: all.
  int head_group = 0;
  // GPUs: a worker is so many blocks, which share its rows and load each key and value once.
  int cluster_size = 1;
  ProductOrder products = ProductOrder::kAhead;  // how warpgroups share the tensor core (Resource)
  friend bool operator==(const AttentionConfig&, const AttentionConfig&) = default;
};
NamedFields fields_of(AttentionConfig& config);

// Which heads a rank holds.
struct HeadSplit {
  int heads_per_rank = 1;     // query heads, padding included
  int kv_heads_per_rank = 1;  // the most any rank needs
  // What one rank has: its first query head, the number of real ones, its first KV head.
  int first_head(int rank) const;
  int num_heads_of(int rank) const;
  int first_kv_head(int rank) const;
  int num_heads = 1, num_kv_heads = 1;
};
HeadSplit split_heads(const AttentionDesc& desc);

// Tiles of a GPU program: two warpgroups with whole loads ahead where the tensor core takes the
// head size. Keys and values have as many rows as shared memory holds twice beside two tiles of
// queries, and registers hold beside the sums.
struct AttentionTile {
  std::int64_t rows = 16, kv = 32;  // queries; keys and values
  int num_stages = 0;
};
AttentionTile gpu_attention_tile(DType dtype, std::int64_t head_dim);
// Where the tensor core takes 16-bit heads a row of queries at a time, or few: so many blocks of
// `kv` keys and values, up to four, as a block's shared memory holds beside two tiles of `rows`.
int decode_stages(std::int64_t rows, std::int64_t kv, std::int64_t head_dim, const GpuTarget& gpu);

NamedFields fields_of(AttentionDesc& desc);
// docs/performance/attention.md, 'Why the defaults are what they are', has what was measured.
AttentionConfig default_config(const AttentionDesc& desc, Target target = Target::kCpu);
// The config of rope() on a GPU; tiles have no more rows than `most_rows`.
AttentionConfig gpu_rope_config(const AttentionDesc& desc, const GpuTarget& gpu,
                                std::int64_t most_rows);

// qkv [m, (Hq + 2 Hkv) * head_dim]: query heads, key heads, value heads of this rank. cos, sin
// [max_tokens, head_dim / 2] f32; rotates the two halves of each head (Su et al., RoFormer, in the
// half-split form of Llama).
// -> q [m, Hq * head_dim]; k_cache, v_cache [Hkv, max_tokens, head_dim] gain rows past .. past + m.
// With head_norm also q_norm, k_norm [1, head_dim]. For one sequence: batch 1.
Program rope(const AttentionDesc& desc, const AttentionConfig& config);
// q [batch, m, Hq * head_dim], k_cache, v_cache [batch * Hkv, max_tokens, head_dim] ->
// out [batch, m, Hq * head_dim]. Softmax online over blocks of the cache (online_softmax.h). With
// lse also lse [batch * Hq, m] f32: for each row, the natural logarithm of the sum over
// exp(scale * score). Row i is token past + i; with m above max_tokens there may be rows past the
// cache's last token: they see all of it, or what is left of their window. A row that sees nothing
// is 0, its logarithm -inf.
Program attention(const AttentionDesc& desc, const AttentionConfig& config);

OperatorInfo rope_info();
OperatorInfo attention_info();

}  // namespace stretto
