#include <algorithm>

#include "stretto/ops/moe/even_routing.h"
#include "stretto/ops/moe/moe_shapes.h"

namespace stretto {
namespace {

constexpr std::int64_t kExperts = 5, kTopK = 2;

// Of some numbers of rows all sums are made by those who have multiplied.
void sum_some_at_end(const GroupedRsDesc& d, GroupedRsConfig& c) {
  if (d.shape.m % 6 != 3) return;
  sum_at_end(d, c);
  if (d.shape.m <= 64) c.last_rows = 1, c.last_rounds = 2;
}

// Rows are copied into the order of the tiles, some columns at a time, or picked where they lie.
void sort_some(std::int64_t m, std::int64_t k, AgGroupedConfig& c) {
  if (m % 6 != 0) return;
  c.sort_rows = c.loop.tile.bm > 4 ? 48 : 3;
  c.sort_cols = c.loop.tile.bm > 4 ? k : std::min<std::int64_t>(16, k);
}

// Own tokens are pushed by those who multiply, or sent by copy engines.
void push_some(std::int64_t m, AgGroupedConfig& c) { c.num_copy_queues = m % 4 == 1 ? 0 : 1; }

// On CPU ranks two steps of the product, where there is one.
void take_steps(std::int64_t k, Target target, GemmTile& tile) {
  if (target == Target::kCpu) tile.bk = std::min(tile.bk, ceil_div(k, std::int64_t{2}));
}

// Halves of tiles that hold no token are left out, in products of several steps. On GPUs that takes
// tiles of 128 rows.
void skip_some(std::int64_t m, std::int64_t k, Target target, AgGroupedConfig& c) {
  if (m % 2 == 0) return;
  take_steps(k, target, c.loop.tile);
  c.skip_dead_rows = k > c.loop.tile.bk;
  if (c.skip_dead_rows && target == Target::kCuda) c.loop.tile.bm = 128;
}

OpShape half_empty_tiles(int world_size) {
  return {.world_size = world_size, .m = 67, .n = 136, .k = 136, .dtype = DType::kBF16};
}

OpShape with_biases(int world_size) {
  return {.world_size = world_size, .m = kRowsWithBiases, .n = 24, .k = 40, .dtype = DType::kBF16};
}

// What both layers have.
template <typename Desc>
Desc layer_of(const OpShape& s) {
  return {.shape = {.world_size = s.world_size,
                    .m = s.m > 0 ? s.m : 64,
                    .top_k = kTopK,
                    .num_experts = kExperts},
          .n = s.n > 0 ? s.n : 128,
          .k = s.k > 0 ? s.k : 128,
          .a_dtype = s.dtype,
          .b_dtype = s.dtype};
}

OperatorInfo sums_info(bool all_reduce) {
  return {.name = all_reduce ? "grouped_gemm_ar" : "grouped_gemm_rs",
          .summary = all_reduce
                         ? "weighted sums of m tokens' 2 products of size n, all on every rank"
                         : "weighted sums of m tokens' 2 products of size n, over the ranks",
          .program =
              [all_reduce](const OpShape& s) {
                GroupedRsDesc d = grouped_gemm_rs_desc(s, all_reduce);
                return grouped_gemm_rs(d, grouped_gemm_rs_config(d, s));
              },
          .shapes = [](int world_size) -> std::vector<OpShape> {
            return with_test_configs(
                {{.world_size = world_size, .m = 9, .n = 21, .k = 19, .dtype = DType::kF32},
                 {.world_size = world_size, .m = 6, .n = 24, .k = 32, .dtype = DType::kBF16},
                 with_biases(world_size)});
          },
          .large = {.m = 4096, .n = 4096, .k = 3584, .dtype = DType::kBF16},
          .tables =
              [all_reduce](const OpShape& s) {
                GroupedRsDesc d = grouped_gemm_rs_desc(s, all_reduce);
                return even_routing(d, grouped_gemm_rs_config(d, s));
              }};
}

}  // namespace

AgGroupedConfig ag_grouped_gemm_config(const AgGroupedDesc& d, const OpShape& s) {
  AgGroupedConfig c = default_config(d, s.target);
  if (!s.test_config) return c;
  if (s.target == Target::kCpu && d.shape.m <= 64) {
    c.loop.tile.bm = std::min<std::int64_t>(4, d.shape.m * d.shape.top_k);
    c.loop.num_compute_sms = 2;
    c.comm_rows = std::min<std::int64_t>(c.comm_rows, 2);
  }
  push_some(d.shape.m, c);
  sort_some(d.shape.m, d.k, c);
  skip_some(d.shape.m, d.k, s.target, c);
  return c;
}

GroupedRsConfig grouped_gemm_rs_config(const GroupedRsDesc& d, const OpShape& s) {
  GroupedRsConfig c = default_config(d, s.target);
  if (!s.test_config) return c;
  // A worker for every tile, which may come in any order, or beside those who multiply.
  if (s.target == Target::kCuda) sum_beside(d, c);
  c.num_reduce_sms = d.shape.m % 2 == 0 ? 2 * d.shape.world_size : 0;
  if (c.num_reduce_sms > 0) c.num_reduce_stages = 2;
  if (s.target == Target::kCpu) {
    c.loop.tile.bm = std::min<std::int64_t>(4, d.shape.m * d.shape.top_k);
    c.loop.num_compute_sms = 2;
    c.reduce_rows = 1;
    c.reduce_rounds = 2;
    if (d.shape.m % 2 == 1 && d.n > c.loop.tile.bn) c.last_blocks = 1, c.last_rows = 2;
  }
  sum_some_at_end(d, c);
  return c;
}

MoeLayerConfig moe_layer_config(const MoeLayerDesc& d, const OpShape& s) {
  MoeLayerConfig c = default_config(d, s.target);
  if (!s.test_config) return c;
  const Target target = s.target;
  if (target == Target::kCpu) c.first.loop.num_compute_sms = c.second.loop.num_compute_sms = 3;
  if (target == Target::kCpu && d.shape.m <= 64) {
    c.first.loop.tile.bm = c.second.loop.tile.bm =
        std::min<std::int64_t>(4, d.shape.m * d.shape.top_k);
    c.first.comm_rows = std::min<std::int64_t>(c.first.comm_rows, 2);
    c.second.reduce_rows = 1;
    c.second.reduce_rounds = 2;
    if (d.shape.m % 2 == 1 && d.hidden > c.second.loop.tile.bn) c.second.last_blocks = 1;
    sum_some_at_end(second_layer(d), c.second);
  }
  push_some(d.shape.m, c.first);
  sort_some(d.shape.m, d.hidden, c.first);
  if (d.shape.m % 2 == 1) take_steps(d.ffn, target, c.second.loop.tile);
  if (d.ffn > c.second.loop.tile.bk) skip_some(d.shape.m, d.hidden, target, c.first);
  c.second.loop.tile.bm = c.first.loop.tile.bm;
  return c;
}

AgGroupedDesc ag_grouped_gemm_desc(const OpShape& s) {
  auto d = layer_of<AgGroupedDesc>(s);
  d.c_dtype = s.dtype;
  d.swiglu = d.shape.m % 2 == 0;
  d.bias = has_biases(s);
  if (d.swiglu) d.gate = gate_of(s);
  return d;
}

GroupedRsDesc grouped_gemm_rs_desc(const OpShape& s, bool all_reduce) {
  auto d = layer_of<GroupedRsDesc>(s);
  d.out_dtype = s.dtype;
  d.residual = d.shape.m % 2 == 0;
  d.all_reduce = all_reduce;
  if (has_biases(s)) d.bias_ranks = s.world_size;
  return d;
}

MoeLayerDesc moe_layer_desc(const OpShape& s) {
  MoeLayerDesc d{.shape = {.world_size = s.world_size,
                           .m = s.m > 0 ? s.m : 64,
                           .top_k = kTopK,
                           .num_experts = kExperts},
                 .hidden = s.k > 0 ? s.k : 128,
                 .ffn = s.n > 0 ? s.n : 128,
                 .dtype = s.dtype};
  d.residual = d.shape.m % 2 == 0;
  if (has_biases(s)) d.bias_ranks = s.world_size;
  d.gate = gate_of(s);
  return d;
}

OperatorInfo ag_grouped_gemm_info() {
  return {.name = "ag_grouped_gemm",
          .summary = "m gathered tokens of size k times weights [n, k] of their 2 experts",
          .program =
              [](const OpShape& s) {
                AgGroupedDesc d = ag_grouped_gemm_desc(s);
                return ag_grouped_gemm(d, ag_grouped_gemm_config(d, s));
              },
          .shapes = [](int world_size) -> std::vector<OpShape> {
            return with_test_configs(
                {{.world_size = world_size, .m = 9, .n = 13, .k = 19, .dtype = DType::kF32},
                 {.world_size = world_size, .m = 6, .n = 16, .k = 32, .dtype = DType::kBF16},
                 half_empty_tiles(world_size),
                 with_biases(world_size)});
          },
          .large = {.m = 4096, .n = 3584, .k = 4096, .dtype = DType::kBF16},
          .tables =
              [](const OpShape& s) {
                AgGroupedDesc d = ag_grouped_gemm_desc(s);
                return even_routing(d, ag_grouped_gemm_config(d, s));
              }};
}

OperatorInfo grouped_gemm_rs_info() { return sums_info(false); }
OperatorInfo grouped_gemm_ar_info() { return sums_info(true); }

OperatorInfo moe_layer_info() {
  return {.name = "moe_layer",
          .summary = "m tokens of size k through their 2 experts of inner size n, over the ranks",
          .program =
              [](const OpShape& s) {
                MoeLayerDesc d = moe_layer_desc(s);
                return moe_layer(d, moe_layer_config(d, s));
              },
          .shapes = [](int world_size) -> std::vector<OpShape> {
            return with_test_configs(
                {{.world_size = world_size, .m = 9, .n = 13, .k = 19, .dtype = DType::kF32},
                 {.world_size = world_size, .m = 6, .n = 16, .k = 32, .dtype = DType::kBF16},
                 half_empty_tiles(world_size),
                 with_biases(world_size)});
          },
          .large = {.m = 8192, .n = 1792, .k = 4096, .dtype = DType::kBF16},
          .tables =
              [](const OpShape& s) {
                MoeLayerDesc d = moe_layer_desc(s);
                return even_routing(d, moe_layer_config(d, s));
              }};
}

}  // namespace stretto
