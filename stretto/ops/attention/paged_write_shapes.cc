#include "stretto/ops/attention/attention_shapes.h"

namespace stretto {
namespace {

OperatorInfo paged_write_info(const char* name, const char* summary, bool fp8) {
  return {.name = name,
          .summary = summary,
          .program = [=](const OpShape& s) { return paged_write_program(s, fp8); },
          // Ranks have nothing to do with each other.
          .shapes = [](int world_size) -> std::vector<OpShape> {
            OpShape runs{.world_size = world_size, .m = 7, .n = 12, .k = 16};
            runs.dtype = DType::kBF16;
            OpShape groups{.world_size = world_size, .m = 10, .n = 21, .k = 4};
            OpShape few{.world_size = world_size, .m = 3, .n = 64, .k = 8};
            return {runs, groups, few};
          },
          .large = {.m = 256, .n = 65536, .k = 128, .dtype = DType::kBF16}};
}

}  // namespace

PagedWriteDesc paged_write_desc(const OpShape& s, bool fp8) {
  PagedWriteDesc d{.dtype = s.dtype, .fp8 = fp8, .world_size = s.world_size};
  d.m = s.m > 0 ? s.m : 8;
  d.head_dim = s.k > 0 ? s.k : 32;
  bool large = d.head_dim > 100;
  d.page = large ? 64 : 4;
  d.num_pages = ceil_div(s.n > 0 ? s.n : std::int64_t{40}, d.page);
  // Even numbers of rows come with groups of three heads, which some worlds cut.
  d.num_heads = large ? 32 : d.m % 2 == 0 ? 6 : 4;
  d.num_kv_heads = large ? 8 : 2;
  return d;
}

Program paged_write_program(const OpShape& s, bool fp8) {
  PagedWriteDesc d = paged_write_desc(s, fp8);
  PagedWriteConfig c = default_config(d, s.target);
  if (s.target == Target::kCpu) c.num_workers = 2;
  return paged_write(d, c);
}

OperatorInfo paged_write_info() {
  return paged_write_info("paged_write",
              "new keys and values of m tokens to their places in the pages of a cache of n "
              "tokens, head size k",
              false);
}

OperatorInfo paged_write_fp8_info() {
  return paged_write_info("paged_write_fp8",
              "new keys and values of m tokens, as e4m3 with a scale for each, to their places in "
              "the pages of a cache of n tokens, head size k",
              true);
}

}  // namespace stretto
