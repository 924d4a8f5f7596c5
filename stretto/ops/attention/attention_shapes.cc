#include "stretto/ops/attention/attention_shapes.h"

#include <algorithm>

namespace stretto {
namespace {

AttentionConfig config_of(const AttentionDesc& d) {
  return {.tile_rows = std::min<std::int64_t>(4, d.m),
          .tile_kv = std::min<std::int64_t>(8, d.max_tokens)};
}

std::vector<OpShape> shapes(int world_size) {
  return {{.world_size = world_size, .m = 5, .n = 40, .k = 8, .dtype = DType::kF32},
          {.world_size = world_size, .m = 11, .n = 37, .k = 6, .dtype = DType::kBF16},
          {.world_size = world_size, .m = 1, .n = 19, .k = 4, .dtype = DType::kF16}};
}

// Also of more rows than cached tokens, the second with a window.
std::vector<OpShape> attention_shapes(int world_size) {
  std::vector<OpShape> all = shapes(world_size);
  all.push_back({.world_size = world_size, .m = 21, .n = 10, .k = 8, .dtype = DType::kF32});
  all.push_back({.world_size = world_size, .m = 23, .n = 9, .k = 16, .dtype = DType::kBF16});
  return all;
}

OpShape large() { return {.m = 4096, .n = 8192, .k = 128, .dtype = DType::kBF16}; }

}  // namespace

// m: new tokens; n: cache; k: head size.
AttentionDesc attention_desc(const OpShape& s) {
  AttentionDesc d{.dtype = s.dtype, .weight_dtype = s.dtype, .world_size = s.world_size};
  d.m = s.m > 0 ? s.m : 32;
  d.max_tokens = std::max(s.n > 0 ? s.n : 128, d.m);
  d.head_dim = s.k > 0 ? s.k : 32;
  d.num_heads = 6;
  d.num_kv_heads = 3;
  d.window = d.max_tokens % 2 == 1 ? d.max_tokens / 3 + 1 : 0;  // odd caches test the window
  d.head_norm = d.head_dim % 4 == 2;
  d.lse = d.m % 2 == 1;
  return d;
}

// Several sequences of one length in one of the shapes.
AttentionDesc attention_batch_desc(const OpShape& s) {
  AttentionDesc d = attention_desc(s);
  if (s.n > 0) d.max_tokens = s.n;  // also fewer than rows
  if (d.m % 8 == 5) d.batch = 2;
  return d;
}

AttentionConfig rope_config(const AttentionDesc& d, Target target) {
  if (target == Target::kCuda) return gpu_rope_config(d, target.gpu(), d.m);
  AttentionConfig c = config_of(d);
  HeadSplit split = split_heads(d);
  if (split.heads_per_rank % 2 == 0) c.head_group = split.kv_heads_per_rank % 2 == 0 ? 2 : 1;
  return c;
}

AttentionConfig attention_config(const AttentionDesc& d, Target target) {
  return target == Target::kCuda ? default_config(d, target) : config_of(d);
}

AttentionDesc decode_desc(OpShape s) {
  s.m = 1;
  AttentionDesc d = attention_desc(s);
  d.lse = d.max_tokens % 2 == 1;  // odd caches give logarithms, too
  return d;
}

DecodeAttentionConfig decode_config(const AttentionDesc& d, Target target) {
  if (target == Target::kCuda) return default_decode_config(d, target);
  return {.tile_kv = std::min<std::int64_t>(8, d.max_tokens), .splits = 3, .num_workers = 2};
}

OperatorInfo rope_info() {
  return {.name = "rope",
          .summary =
              "rotary embedding of m tokens with head size k, and their cache write (cache of n "
              "tokens)",
          .program =
              [](const OpShape& s) {
                AttentionDesc d = attention_desc(s);
                return rope(d, rope_config(d, s.target));
              },
          .shapes = shapes,
          .large = large()};
}

OperatorInfo attention_info() {
  return {.name = "attention",
          .summary = "causal GQA attention of m tokens over a cache of n, head size k",
          .program =
              [](const OpShape& s) {
                AttentionDesc d = attention_batch_desc(s);
                return attention(d, attention_config(d, s.target));
              },
          .shapes = attention_shapes,
          .large = large()};
}

OperatorInfo decode_attention_info() {
  return {.name = "decode_attention",
          .summary =
              "rotary embedding, cache write and GQA attention of one token over a cache of "
              "n, head size k",
          .program =
              [](const OpShape& s) {
                AttentionDesc d = decode_desc(s);
                return decode_attention(d, decode_config(d, s.target));
              },
          .shapes = shapes,
          .large = large()};
}

}  // namespace stretto
