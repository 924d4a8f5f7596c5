#include <algorithm>

#include "stretto/ops/attention/attention_shapes.h"

namespace stretto {
namespace {

PagedDecodeConfig config_of(const PagedDecodeDesc& d, Target target) {
  PagedDecodeConfig c = default_config(d, target);
  if (target == Target::kCuda) return c;
  c.tile_kv = std::min<std::int64_t>(2, c.tile_kv);
  c.splits = d.m % 2 == 0 ? 1 : 3;
  if (d.max_tokens % 2 == 0) c.first_run = c.tile_kv;
  c.num_workers = 2;
  return c;
}

OperatorInfo paged_decode_info(const char* name, const char* summary, bool fp8) {
  return {.name = name,
          .summary = summary,
          .program = [=](const OpShape& s) { return paged_decode_program(s, fp8); },
          // Ranks have nothing to do with each other.
          .shapes = [](int world_size) -> std::vector<OpShape> {
            OpShape split{.world_size = world_size, .m = 3, .n = 14, .k = 16};
            split.dtype = DType::kBF16;
            OpShape whole{.world_size = world_size, .m = 4, .n = 13, .k = 4};
            OpShape window{.world_size = world_size, .m = 5, .n = 14, .k = 4};
            OpShape runs{.world_size = world_size, .m = 2, .n = 150, .k = 4};
            return {split, whole, window, runs};
          },
          .large = {.m = 16, .n = 8192, .k = 128, .dtype = DType::kBF16}};
}

}  // namespace

PagedDecodeDesc paged_decode_desc(const OpShape& s, bool fp8) {
  PagedDecodeDesc d{.dtype = s.dtype, .world_size = s.world_size};
  d.m = s.m > 0 ? s.m : 8;
  d.max_tokens = s.n > 0 ? s.n : 128;
  d.head_dim = s.k > 0 ? s.k : 32;
  bool large = d.max_tokens > 1000;
  d.num_heads = large ? 32 : d.m % 2 == 0 ? 2 : 6;
  d.num_kv_heads = large ? 8 : 2;
  d.page = large ? 64 : 4;
  d.num_pages = ceil_div(d.max_tokens, d.page) * (large ? d.m : 3);
  d.lse = d.m % 2 == 1;
  d.fp8 = fp8;
  d.window = d.m % 5 == 0 ? d.m : 0;  // tens and fives
  return d;
}

Program paged_decode_program(const OpShape& s, bool fp8) {
  PagedDecodeDesc d = paged_decode_desc(s, fp8);
  return paged_decode(d, config_of(d, s.target));
}

OperatorInfo paged_decode_info() {
  return paged_decode_info(
      "paged_decode",
      "GQA attention of one new token of each of m sequences over pages of a cache, "
      "up to n tokens a sequence, head size k",
      false);
}

OperatorInfo paged_decode_fp8_info() {
  return paged_decode_info(
      "paged_decode_fp8",
      "GQA attention of one new token of each of m sequences over pages of e4m3 with "
      "scales, up to n tokens a sequence, head size k",
      true);
}

}  // namespace stretto
