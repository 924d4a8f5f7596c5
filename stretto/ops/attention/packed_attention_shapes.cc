#include <algorithm>

#include "stretto/ops/attention/attention_shapes.h"

namespace stretto {
namespace {

PackedAttentionConfig config_of(const PackedAttentionDesc& d, Target target) {
  PackedAttentionConfig c = default_config(d, target);
  if (target == Target::kCuda) return c;
  c.tile_rows = std::min<std::int64_t>(2, c.tile_rows);
  c.tile_kv = d.page > 0 ? 2 : 3;
  if (d.page > 0 && d.max_tokens % 2 == 0) c.first_run = c.tile_kv;
  c.blocks = 2;
  c.num_workers = 2;
  return c;
}

OperatorInfo packed_info(const char* name, const char* summary, PackedKeys keys) {
  bool paged = keys != PackedKeys::kLikeQueries;
  return {.name = name,
          .summary = summary,
          .program = [=](const OpShape& s) { return packed_program(s, keys); },
          // Ranks have nothing to do with each other.
          .shapes = [=](int world_size) -> std::vector<OpShape> {
            OpShape small{.world_size = world_size, .m = 10, .n = paged ? 13 : 3, .k = 4};
            OpShape odd{.world_size = world_size, .m = 11, .n = paged ? 14 : 4, .k = 16};
            odd.dtype = DType::kBF16;
            OpShape window{.world_size = world_size, .m = 9, .n = paged ? 14 : 3, .k = 4};
            if (world_size > 2) odd.m = 7, odd.k = 4;
            if (!paged) return {small, odd, window};
            return {small, odd, window, {.world_size = world_size, .m = 12, .n = 150, .k = 4}};
          },
          .large = {.m = 16384, .n = paged ? 4096 : 16, .k = 128, .dtype = DType::kBF16}};
}

}  // namespace

// m: query tokens of all sequences; n: sequences, or with pages tokens of one in the cache; k: head
// size.
PackedAttentionDesc packed_desc(const OpShape& s, PackedKeys keys) {
  bool paged = keys != PackedKeys::kLikeQueries;
  PackedAttentionDesc d{.dtype = s.dtype, .world_size = s.world_size};
  d.m = s.m > 0 ? s.m : 64;
  d.head_dim = s.k > 0 ? s.k : 32;
  bool large = d.m > 1000;
  d.num_heads = large ? 32 : 4;
  d.num_kv_heads = large ? 8 : 2;
  d.sequences = paged ? (large ? 16 : 4) : (s.n > 0 ? s.n : 4);
  d.lse = d.m % 2 == 1;
  d.causal = d.m % 5 != 0;                // tens test that all see all
  d.window = d.m % 9 == 0 ? d.m / 3 : 0;  // nines a window
  if (!paged) return d;
  d.max_tokens = s.n > 0 ? s.n : 128;
  d.fp8 = keys == PackedKeys::kPagedFp8;
  d.page = large ? 128 : 4;
  d.num_pages = ceil_div(d.max_tokens, d.page) * 3;
  d.sequences = std::max(d.sequences, ceil_div(d.m, d.max_tokens));  // rows are tokens of theirs
  return d;
}

Program packed_program(const OpShape& s, PackedKeys keys) {
  PackedAttentionDesc d = packed_desc(s, keys);
  return (d.page > 0 ? paged_attention : packed_attention)(d, config_of(d, s.target));
}

OperatorInfo packed_attention_info() {
  return packed_info(
      "packed_attention",
      "causal GQA attention of n sequences of different lengths, m tokens in all, head "
      "size k",
      PackedKeys::kLikeQueries);
}

OperatorInfo paged_attention_info() {
  return packed_info(
      "paged_attention",
      "causal GQA attention of sequences with m new tokens in all over pages of a cache, "
      "up to n tokens a sequence, head size k",
      PackedKeys::kPaged);
}

OperatorInfo paged_attention_fp8_info() {
  return packed_info(
      "paged_attention_fp8",
      "causal GQA attention of sequences with m new tokens in all over pages of e4m3 with "
      "scales, up to n tokens a sequence, head size k",
      PackedKeys::kPagedFp8);
}

}  // namespace stretto
