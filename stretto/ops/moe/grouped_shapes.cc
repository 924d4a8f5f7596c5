#include <algorithm>

#include "stretto/ops/moe/even_routing.h"
#include "stretto/ops/moe/moe_shapes.h"

namespace stretto {
namespace {

// Of tests a rank with experts of its own, where half the ranks could have parts of each: by size.
int groups_of(const OpShape& s) {
  if (!s.test_config) return 1;
  if (s.m == 16 || s.m == 6) return s.world_size;
  return (s.m == 9 || has_biases(s)) && s.world_size % 2 == 0 ? s.world_size / 2 : 1;
}

OperatorInfo sorted_info(bool all_reduce) {
  auto desc = [all_reduce](const OpShape& s) { return sorted_gemm_rs_desc(s, all_reduce); };
  return {
      .name = all_reduce ? "sorted_gemm_ar" : "sorted_gemm_rs",
      .summary = all_reduce
                     ? "weighted sums of m tokens' 2 products, sorted by expert, on every rank"
                     : "weighted sums of m tokens' 2 products, sorted by expert, over the ranks",
      .program =
          [desc](const OpShape& s) {
            return sorted_gemm_rs(desc(s), sorted_gemm_rs_config(desc(s), s));
          },
      .shapes = [](int world_size) -> std::vector<OpShape> {
        return with_test_configs(
            {{.world_size = world_size, .m = 9, .n = 21, .k = 19, .dtype = DType::kF32},
             {.world_size = world_size, .m = 6, .n = 24, .k = 32, .dtype = DType::kBF16},
             {.world_size = world_size, .m = 7, .n = 24, .k = 32, .dtype = DType::kBF16},
             {.world_size = world_size, .m = 3, .n = 19, .k = 150, .dtype = DType::kF8E4M3}});
      },
      .large = {.m = 4096, .n = 2048, .k = 768, .dtype = DType::kBF16},
      .tables = [desc](const OpShape& s) { return even_routing(desc(s)); }};
}

OperatorInfo grouped_info(const char* name, const char* summary,
                          GroupedDesc (*desc)(const OpShape&)) {
  return {
      .name = name,
      .summary = summary,
      .program =
          [desc](const OpShape& s) { return grouped_gemm(desc(s), grouped_config(desc(s), s)); },
      .shapes = [](int world_size) -> std::vector<OpShape> {
        return with_test_configs(
            {{.world_size = world_size, .m = 9, .n = 29, .k = 51, .dtype = DType::kF32},
             {.world_size = world_size, .m = 16, .n = 32, .k = 64, .dtype = DType::kBF16},
             {.world_size = world_size, .m = 3, .n = 19, .k = 150, .dtype = DType::kF8E4M3},
             {.world_size = world_size,
              .m = kRowsWithBiases,
              .n = 24,
              .k = 40,
              .dtype = DType::kF16}});
      },
      .large = {.m = 4096, .n = 1408, .k = 2048, .dtype = DType::kBF16},
      .tables = [desc](const OpShape& s) { return even_routing(desc(s)); }};
}

}  // namespace

GroupedDesc grouped_desc(const OpShape& s) {
  bool bytes = s.dtype == DType::kF8E4M3;
  return {.world_size = s.world_size,
          .m = s.m > 0 ? s.m : 64,
          .rows_per_token = 2,
          .num_experts = s.m > 1000 ? 32 : 5,
          .expert_groups = groups_of(s),
          .n = s.n > 0 ? s.n : 128,
          .k = s.k > 0 ? s.k : 128,
          .a_dtype = s.dtype,
          .b_dtype = s.dtype,
          .c_dtype = bytes ? DType::kBF16 : s.dtype,
          .bias = has_biases(s),
          .scaling = bytes ? Scaling::kBlock : Scaling::kNone};
}

GroupedDesc grouped_swiglu_desc(const OpShape& s) {
  GroupedDesc d = grouped_desc(s);
  d.gathered = d.swiglu = true;
  d.gate = gate_of(s);
  d.spare_rows = s.test_config && s.m == 9;
  return d;
}

GroupedDesc grouped_masked_desc(const OpShape& s) {
  GroupedDesc d = grouped_desc(s);
  d.layout = RowLayout::kMasked;
  d.rows_per_token = 1;
  return d;
}

GroupedConfig grouped_config(const GroupedDesc& d, const OpShape& s) {
  GroupedConfig c = default_config(d, s.target);
  if (s.test_config && s.target == Target::kCpu) {
    c.loop.tile.bm = 4, c.row_parts = 2, c.loop.num_compute_sms = 2;
  }
  return c;
}

SortedRsDesc sorted_gemm_rs_desc(const OpShape& s, bool all_reduce) {
  SortedRsDesc d{.products = grouped_desc(s), .all_reduce = all_reduce};
  d.residual = d.products.m % 2 == 0;
  return d;
}

SortedRsConfig sorted_gemm_rs_config(const SortedRsDesc& d, const OpShape& s) {
  // Of bfloat16, seven rows: the weights on the left.
  const bool swaps = s.target == Target::kCuda && d.products.m == 7 && can_swap(d.products);
  SortedRsConfig c = default_config(d, s.target, swaps);
  if (!s.test_config || s.target != Target::kCpu) return c;
  c.sums.loop.tile.bm = 4;
  c.sums.loop.num_compute_sms = 2;
  c.row_parts = 2;
  if (d.products.m != 9) return c;
  c.sums.block_tiles = 1;  // beside the products
  c.sums.loop.tile.bn = c.sums.reduce_cols = 8;
  c.sums.last_blocks = 0;
  c.sums.last_rows = c.sums.last_rounds = 1;
  c.sums.reduce_rounds = 2;
  return c;
}

CombineDesc combine_desc(const OpShape& s) {
  return {
      .shape = {.world_size = s.world_size, .m = s.m > 0 ? s.m : 64, .top_k = 3, .num_experts = 5},
      .hidden = s.n > 0 ? s.n : 128,
      .dtype = s.dtype,
      .expert_groups = groups_of(s),
      .sequence_parallel = s.m % 2 == 1};
}

CombineConfig combine_config(const CombineDesc& d, const OpShape& s) {
  CombineConfig c = default_config(d, s.target);
  if (s.test_config && s.target == Target::kCpu)
    c.tile_rows = std::min<std::int64_t>(c.tile_rows, 4);
  return c;
}

OperatorInfo grouped_gemm_info() {
  return grouped_info("grouped_gemm", "rows [2m, k] times the weights [n, k] of their experts",
                      grouped_desc);
}

OperatorInfo grouped_swiglu_info() {
  return grouped_info("grouped_swiglu",
                      "rows of m tokens, gathered, times both weights [n, k] of their experts",
                      grouped_swiglu_desc);
}

OperatorInfo grouped_gemm_masked_info() {
  OperatorInfo op =
      grouped_info("grouped_gemm_masked", "up to m rows of each expert times its weights [n, k]",
                   grouped_masked_desc);
  op.shapes = [](int world_size) -> std::vector<OpShape> {
    return with_test_configs(
        {{.world_size = world_size, .m = 6, .n = 19, .k = 150, .dtype = DType::kF8E4M3},
         {.world_size = world_size, .m = 9, .n = 37, .k = 70, .dtype = DType::kF16},
         {.world_size = world_size,
          .m = kRowsWithBiases,
          .n = 19,
          .k = 150,
          .dtype = DType::kF8E4M3}});
  };
  op.large = {.m = 128, .n = 1408, .k = 2048, .dtype = DType::kBF16};
  return op;
}

OperatorInfo sorted_gemm_rs_info() { return sorted_info(false); }
OperatorInfo sorted_gemm_ar_info() { return sorted_info(true); }

OperatorInfo moe_combine_info() {
  return {.name = "moe_combine",
          .summary = "weighted sum of the 3 results of m tokens of hidden size n, over the ranks",
          .program =
              [](const OpShape& s) {
                return moe_combine(combine_desc(s), combine_config(combine_desc(s), s));
              },
          .shapes = [](int world_size) -> std::vector<OpShape> {
            return with_test_configs(
                {{.world_size = world_size, .m = 6, .n = 50, .dtype = DType::kF32},
                 {.world_size = world_size, .m = 9, .n = 33, .dtype = DType::kBF16},
                 {.world_size = world_size, .m = 1, .n = 16, .dtype = DType::kF16}});
          },
          .large = {.m = 4096, .n = 2048, .dtype = DType::kBF16},
          .tables = [](const OpShape& s) { return even_routing(combine_desc(s)); }};
}

}  // namespace stretto
