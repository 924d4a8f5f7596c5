#include "stretto/ops/attention/attention_shapes.h"

namespace stretto {
namespace {

std::vector<OpShape> decode_shapes(int world_size) {
  return {{.world_size = world_size, .m = 2, .n = 27, .k = 4},
          {.world_size = world_size, .m = 1, .n = 33, .k = 32, .dtype = DType::kBF16},
          {.world_size = world_size, .m = 3, .n = 35, .k = 8}};
}

}  // namespace

// m: query tokens; n: tokens of the cache; k: head size.
FlashDecodeDesc flash_decode_desc(const OpShape& s) {
  FlashDecodeDesc d{.dtype = s.dtype, .world_size = s.world_size};
  d.m = s.m > 0 ? s.m : 1;
  d.max_tokens = s.n > 0 ? s.n : 512;
  d.head_dim = s.k > 0 ? s.k : 32;
  if (d.max_tokens % 5 == 0) d.window = d.max_tokens / 5 + 2;  // fives a window
  d.lse = d.m % 3 == 0;
  bool small = d.max_tokens < 64;
  d.block = small ? 4 : 64;
  d.num_heads = small ? 4 : 32;
  d.num_kv_heads = small ? 2 : 8;
  return d;
}

FlashDecodeConfig flash_decode_config(const FlashDecodeDesc& d, Target target) {
  FlashDecodeConfig c = default_config(d, target);
  if (target == Target::kCuda || d.block > 4) return c;
  return {.tile_kv = 2, .splits = 2, .num_workers = 2, .num_combiners = 4};
}

OperatorInfo flash_decode_info() {
  return {
      .name = "flash_decode",
      .summary = "GQA attention of m tokens over a cache of n spread over the ranks, head size k",
      .program =
          [](const OpShape& s) {
            FlashDecodeDesc d = flash_decode_desc(s);
            return flash_decode(d, flash_decode_config(d, s.target));
          },
      .shapes = decode_shapes,
      .large = {.m = 1, .n = 262144, .k = 128, .dtype = DType::kBF16}};
}

}  // namespace stretto
