// Attention of one new token on a GPU: rotary embedding, cache write and attention in one launch.
//
// The cache is cut into runs of tokens that different workers read at the same time, for all query
// heads of a KV head at once (split-KV, Dao et al., Flash-Decoding, 2023). A worker leaves its
// unnormalised sum, its largest score and its sum of weights in buffers of the rank; a second role
// writes the new key and value to the cache and, once all runs of a head have arrived, adds them up
// in the order of the runs.
#pragma once

#include "stretto/ops/attention/attention.h"
#include "stretto/ops/operator/named_fields.h"

namespace stretto {

struct DecodeAttentionConfig {
  std::int64_t tile_kv = 64;  // cached tokens per step
  std::int64_t splits = 1;    // runs of the cache
  int num_workers = 1;        // that read runs
  int num_combiners = 1;      // that add them up, a head at a time
  int num_stages = 0;         // blocks of keys and of values loaded ahead; 0: none
  friend bool operator==(const DecodeAttentionConfig&, const DecodeAttentionConfig&) = default;
};
NamedFields fields_of(DecodeAttentionConfig& config);

// Query heads of a tile: they share a KV head on every rank, and there are no padding heads among
// real ones.
std::int64_t heads_of_a_tile(const AttentionDesc& desc);
DecodeAttentionConfig default_decode_config(const AttentionDesc& desc, Target target);

// desc.m is 1. Extent m (0 or 1), scalar past. qkv [m, Hq + 2 Hkv, head_dim], cos, sin [max_tokens,
// head_dim / 2] f32 -> out [m, Hq, head_dim]; k_cache, v_cache [Hkv, max_tokens, head_dim] gain row
// `past`. With head_norm also q_norm, k_norm [1, head_dim]; with lse also lse [Hq, m] f32. The same
// as rope() and then attention(), up to the order of sums: the own key and value come from `qkv`,
// rounded as the cache is.
Program decode_attention(const AttentionDesc& desc, const DecodeAttentionConfig& config);

OperatorInfo decode_attention_info();

}  // namespace stretto
