// Plain fp64 references of the layers of a mixture of experts whose every rank holds a part of
// every expert: one product per token and expert. The tables come from expert_tiles.h; where each
// token and expert is looked for is taken from them, that every one is there is checked.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "stretto/base/errors.h"
#include "stretto/ops/moe/ag_grouped_gemm.h"
#include "stretto/ops/moe/even_routing.h"
#include "stretto/ops/moe/grouped_gemm_rs.h"
#include "stretto/ops/moe/moe_layer.h"
#include "stretto/ops/moe/routing_case.h"
#include "stretto/ops/moe/tp_case.h"

namespace stretto {
namespace {

constexpr std::int64_t kExperts = 5, kTopK = 2;

Values as_values(const std::vector<std::int32_t>& from, std::size_t count) {
  Values out(from.begin(), from.end());
  out.resize(count, 0.0);
  return out;
}

double product(const double* x, const double* y, std::int64_t k) {
  return std::inner_product(x, x + k, y, 0.0);
}

void set_tile_tables(MoeCase& mc, std::size_t rank, const TileTables& tables) {
  mc.in(rank, "tiles_used") = {static_cast<double>(tables.used)};
  mc.in(rank, "tile_experts") = as_values(tables.experts, tables.experts.size());
}

void set_token_tables(MoeCase& mc, std::size_t rank, const TileTables& tables) {
  mc.in(rank, "tile_needs") = as_values(tables.needs, tables.needs.size());
  mc.in(rank, "row_tokens") = as_values(tables.tokens, tables.tokens.size());
}

// Any number of classes, of some experts or of all.
template <typename Desc>
TileOrder order_of(std::uint64_t seed, const Desc& d) {
  TileOrder order{.stages = 1 + static_cast<int>(seed % at(d.world_size))};
  if (seed % 2 == 1) order.early_experts = 2;
  order.in_step = seed % 3 != 0;
  return order;
}

// The tokens of the next ranks, of `count` elements each, behind the own ones.
void expect_gathered(MoeCase& mc, std::size_t count) {
  mc.c.exact = {"a"};
  std::size_t ranks = mc.c.inputs.size();
  for (std::size_t r = 0; r < ranks; ++r) {
    Values& gathered = mc.out(r, "a");
    for (std::size_t i = 1; i < ranks; ++i) {
      const Values& from = mc.in((r + i) % ranks, "a");
      std::copy_n(from.begin(), count, gathered.begin() + static_cast<std::ptrdiff_t>(i * count));
    }
  }
}

// Of some numbers of rows all sums are made by those who have multiplied.
void sum_some_at_end(const GroupedRsDesc& d, GroupedRsConfig& c) {
  if (d.m % 6 != 3) return;
  sum_at_end(d, c);
  if (d.m <= 64) c.last_rows = 1, c.last_rounds = 2;
}

double swish(double x) { return x / (1 + std::exp(-x)); }

// Rows are copied into the order of the tiles, some columns at a time, or picked where they lie.
void sort_some(std::int64_t m, std::int64_t k, AgGroupedConfig& c) {
  if (m % 6 != 0) return;
  c.sort_rows = c.tile.bm > 4 ? 48 : 3;
  c.sort_cols = c.tile.bm > 4 ? k : std::min<std::int64_t>(16, k);
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
  take_steps(k, target, c.tile);
  c.skip_empty = k > c.tile.bk;
  if (c.skip_empty && target == Target::kCuda) c.tile.bm = 128;
}

OpShape half_empty_tiles(int world_size) {
  return {.world_size = world_size, .m = 67, .n = 136, .k = 136, .dtype = DType::kBF16};
}

// --- ag_grouped_gemm ---

AgGroupedConfig ag_config(const AgGroupedDesc& d, const OpShape& s) {
  AgGroupedConfig c = default_config(d, s.target);
  if (!s.test_config) return c;
  if (s.target == Target::kCpu && d.m <= 64) {
    c.tile.bm = std::min<std::int64_t>(4, d.m * d.top_k);
    c.num_compute_sms = 2;
    c.comm_rows = std::min<std::int64_t>(c.comm_rows, 2);
  }
  push_some(d.m, c);
  sort_some(d.m, d.k, c);
  skip_some(d.m, d.k, s.target, c);
  return c;
}

OpCase ag_case(const OpShape& s, std::uint64_t seed) {
  AgGroupedDesc d = ag_grouped_gemm_desc(s);
  AgGroupedConfig cfg = ag_config(d, s);
  MoeCase mc(ag_grouped_gemm(d, cfg), d.m, seed, s.rows);
  mc.c.config = fmt::format("{} | {} | m={}", to_string(d), to_string(cfg), mc.m);
  mc.c.tolerance = sum_tolerance(d.c_dtype, d.k);
  mc.c.scale = std::sqrt(static_cast<double>(d.k));
  mc.c.flops =
      2.0 * static_cast<double>(mc.m * kTopK * d.n * d.k) * (d.swiglu ? 2 : 1) * d.world_size;
  ExpertTiles tiles = tiles_of(d, cfg);
  std::vector<std::int32_t> chosen = chosen_experts(routed_tokens(tiles, mc.m), seed);
  std::size_t ranks = mc.c.inputs.size(), k = at(d.k);
  std::size_t share = at(ceil_div(mc.m, std::int64_t{d.world_size}));
  mc.c.comm_bytes = static_cast<double>((ranks - 1) * share * k * size_bytes(d.a_dtype));
  expect_gathered(mc, share * k);
  for (std::size_t r = 0; r < ranks; ++r) {
    TileTables tables = tile_tables(tiles, static_cast<int>(r), mc.m, chosen, order_of(seed, d));
    set_tile_tables(mc, r, tables);
    set_token_tables(mc, r, tables);
    Values& c = mc.out(r, "c");
    std::fill(c.begin(), c.end(), 0.0);
    for (std::size_t pair = 0; pair < chosen.size(); ++pair) {
      std::size_t token = pair / at(kTopK);
      const double* x = mc.in(token / share, "a").data() + token % share * k;
      auto sum = [&](const char* name, std::int64_t col) {
        return product(x, mc.in(r, name).data() + at((chosen[pair] * d.n + col) * d.k), d.k);
      };
      for (std::int64_t col = 0; col < d.n; ++col) {
        double value = d.swiglu ? sum("b_gate", col) : sum("b", col);
        if (d.swiglu) value = swish(value) * sum("b_up", col);
        c.at(at(tables.slots[pair] * d.n + col)) = value;
      }
    }
  }
  return std::move(mc.c);
}

// --- grouped_gemm_rs ---

GroupedRsConfig rs_config(const GroupedRsDesc& d, const OpShape& s) {
  GroupedRsConfig c = default_config(d, s.target);
  if (!s.test_config) return c;
  // A worker for every tile, which may come in any order, or beside those who multiply.
  if (s.target == Target::kCuda) sum_beside(d, c);
  c.num_reduce_sms = d.m % 2 == 0 ? 2 * d.world_size : 0;
  if (c.num_reduce_sms > 0) c.num_reduce_stages = 2;
  if (s.target == Target::kCpu) {
    c.tile.bm = std::min<std::int64_t>(4, d.m * d.top_k);
    c.num_compute_sms = 2;
    c.reduce_rows = 1;
    c.reduce_rounds = 2;
    if (d.m % 2 == 1 && d.n > c.tile.bn) c.last_blocks = 1, c.last_rows = 2;
  }
  sum_some_at_end(d, c);
  return c;
}

OpCase sums_case(const OpShape& s, std::uint64_t seed, bool all_reduce) {
  GroupedRsDesc d = grouped_gemm_rs_desc(s, all_reduce);
  GroupedRsConfig cfg = rs_config(d, s);
  MoeCase mc(grouped_gemm_rs(d, cfg), d.m, seed, s.rows);
  mc.c.config = fmt::format("{} | {} | m={}", to_string(d), to_string(cfg), mc.m);
  mc.c.tolerance = sum_tolerance(d.out_dtype, d.k) * 2;
  mc.c.scale = std::sqrt(static_cast<double>(d.k)) * d.world_size;
  mc.c.flops = 2.0 * static_cast<double>(mc.m * kTopK * d.n * d.k) * d.world_size;
  ExpertTiles tiles = tiles_of(d, cfg);
  std::vector<std::int32_t> chosen = chosen_experts(routed_tokens(tiles, mc.m), seed);
  std::size_t ranks = mc.c.inputs.size(), n = at(d.n);
  std::size_t share = at(ceil_div(mc.m, std::int64_t{d.world_size}));
  mc.c.comm_bytes = static_cast<double>((ranks - 1) * share * n * size_bytes(d.out_dtype));
  Values weights = mc.in(0, "weights"), sums(ranks * share * n, 0.0);
  for (std::size_t r = 0; r < ranks; ++r) {
    mc.in(r, "weights") = weights;
    TileTables tables = tile_tables(tiles, static_cast<int>(r), mc.m, chosen, {});
    set_tile_tables(mc, r, tables);
    mc.in(r, "slots") = as_values(tables.slots, mc.in(r, "slots").size());
    for (std::size_t pair = 0; pair < chosen.size(); ++pair) {
      const double* x = mc.in(r, "a").data() + at(tables.slots[pair] * d.k);
      for (std::size_t col = 0; col < n; ++col) {
        const double* w = mc.in(r, "b").data() + (at(chosen[pair]) * n + col) * at(d.k);
        sums[pair / at(kTopK) * n + col] += weights[pair] * product(x, w, d.k);
      }
    }
  }
  if (!all_reduce) {
    expect_sums(mc, sums, share * n, d.residual);
    return std::move(mc.c);
  }
  const std::size_t count = at(mc.m) * n;
  for (std::size_t r = 0; r < ranks; ++r) {
    std::copy_n(sums.begin(), count, mc.out(r, "out").begin());
    if (!d.residual) continue;
    mc.in(r, "residual") = mc.in(0, "residual");
    for (std::size_t i = 0; i < count; ++i) mc.out(r, "out")[i] += mc.in(0, "residual")[i];
  }
  return std::move(mc.c);
}

OperatorInfo sums_info(bool all_reduce) {
  return {.name = all_reduce ? "grouped_gemm_ar" : "grouped_gemm_rs",
          .summary = all_reduce
                         ? "weighted sums of m tokens' 2 products of size n, all on every rank"
                         : "weighted sums of m tokens' 2 products of size n, over the ranks",
          .program =
              [all_reduce](const OpShape& s) {
                GroupedRsDesc d = grouped_gemm_rs_desc(s, all_reduce);
                return grouped_gemm_rs(d, rs_config(d, s));
              },
          .make_case = [all_reduce](const OpShape& s,
                                    std::uint64_t seed) { return sums_case(s, seed, all_reduce); },
          .shapes = [](int world_size) -> std::vector<OpShape> {
            return with_test_configs(
                {{.world_size = world_size, .m = 9, .n = 21, .k = 19, .dtype = DType::kF32},
                 {.world_size = world_size, .m = 6, .n = 24, .k = 32, .dtype = DType::kBF16}});
          },
          .large = {.m = 4096, .n = 4096, .k = 3584, .dtype = DType::kBF16},
          .tables =
              [all_reduce](const OpShape& s) {
                GroupedRsDesc d = grouped_gemm_rs_desc(s, all_reduce);
                return even_routing(d, rs_config(d, s));
              }};
}

// --- moe_layer ---

MoeLayerConfig layer_config(const MoeLayerDesc& d, const OpShape& s) {
  MoeLayerConfig c = default_config(d, s.target);
  if (!s.test_config) return c;
  const Target target = s.target;
  if (target == Target::kCpu) c.first.num_compute_sms = c.second.num_compute_sms = 3;
  if (target == Target::kCpu && d.m <= 64) {
    c.first.tile.bm = c.second.tile.bm = std::min<std::int64_t>(4, d.m * d.top_k);
    c.first.comm_rows = std::min<std::int64_t>(c.first.comm_rows, 2);
    c.second.reduce_rows = 1;
    c.second.reduce_rounds = 2;
    if (d.m % 2 == 1 && d.hidden > c.second.tile.bn) c.second.last_blocks = 1;
    sum_some_at_end(second_layer(d), c.second);
  }
  push_some(d.m, c.first);
  sort_some(d.m, d.hidden, c.first);
  if (d.m % 2 == 1) take_steps(d.ffn, target, c.second.tile);
  if (d.ffn > c.second.tile.bk) skip_some(d.m, d.hidden, target, c.first);
  c.second.tile.bm = c.first.tile.bm;
  return c;
}

OpCase layer_case(const OpShape& s, std::uint64_t seed) {
  MoeLayerDesc d = moe_layer_desc(s);
  MoeLayerConfig cfg = layer_config(d, s);
  MoeCase mc(moe_layer(d, cfg), d.m, seed, s.rows);
  mc.c.config = fmt::format("{} | {} | m={}", to_string(d), to_string(cfg), mc.m);
  mc.c.tolerance = sum_tolerance(d.dtype, d.ffn) + 2 * sum_tolerance(d.dtype, d.hidden);
  double ffn = static_cast<double>(d.ffn), hidden = static_cast<double>(d.hidden);
  mc.c.flops = 6.0 * static_cast<double>(mc.m * kTopK) * hidden * ffn * d.world_size;
  ExpertTiles tiles = tiles_of(d, cfg);
  std::vector<std::int32_t> chosen = chosen_experts(routed_tokens(tiles, mc.m), seed);
  std::size_t ranks = mc.c.inputs.size(), k = at(d.hidden);
  std::size_t share = at(ceil_div(mc.m, std::int64_t{d.world_size}));
  mc.c.comm_bytes = static_cast<double>(2 * (ranks - 1) * share * k * size_bytes(d.dtype));
  expect_gathered(mc, share * k);
  Values weights = mc.in(0, "weights");
  BothLayers layers(mc);
  for (std::size_t r = 0; r < ranks; ++r) {
    mc.in(r, "weights") = weights;
    TileTables tables = tile_tables(tiles, static_cast<int>(r), mc.m, chosen, order_of(seed, d));
    set_tile_tables(mc, r, tables);
    set_token_tables(mc, r, tables);
    mc.in(r, "slots") = as_values(tables.slots, mc.in(r, "slots").size());
    for (std::size_t pair = 0; pair < chosen.size(); ++pair) {
      std::size_t token = pair / at(kTopK);
      layers.add(layers.of({.rank = r, .token = token, .share = share, .expert = at(chosen[pair])}),
                 weights[pair], token);
    }
  }
  layers.expect(share, d.residual);
  return std::move(mc.c);
}

// What both layers have.
template <typename Desc>
Desc layer_of(const OpShape& s) {
  return {.world_size = s.world_size,
          .m = s.m > 0 ? s.m : 64,
          .top_k = kTopK,
          .num_experts = kExperts,
          .n = s.n > 0 ? s.n : 128,
          .k = s.k > 0 ? s.k : 128,
          .a_dtype = s.dtype,
          .b_dtype = s.dtype};
}

}  // namespace

void expect_sums(MoeCase& mc, const Values& sums, std::size_t count, bool residual) {
  for (std::size_t r = 0; r < mc.c.inputs.size(); ++r) {
    auto first = sums.begin() + static_cast<std::ptrdiff_t>(r * count);
    std::copy_n(first, count, mc.out(r, "out").begin());
    if (!residual) continue;
    for (std::size_t i = 0; i < count; ++i) mc.out(r, "out")[i] += mc.in(r, "residual")[i];
  }
}

Values BothLayers::of(const RowOfLayer& row) const {
  const Values &gate = mc_.in(row.rank, "b_gate"), &up = mc_.in(row.rank, "b_up"),
               &down = mc_.in(row.rank, "b");
  auto shape = bound_shape(mc_.c.program, mc_.c.program.find_tensor("b_gate"));  // [experts, n, k]
  std::size_t n = at(shape[1]), k = at(shape[2]);
  const double* x = mc_.in(row.token / row.share, "a").data() + row.token % row.share * k;
  Values between(n), result(k);
  for (std::size_t col = 0; col < n; ++col) {
    auto times = [&](const Values& w) {
      return product(x, w.data() + (row.expert * n + col) * k, shape[2]);
    };
    between[col] = swish(times(gate)) * times(up);
  }
  for (std::size_t col = 0; col < k; ++col) {
    result[col] = product(between.data(), down.data() + (row.expert * k + col) * n, shape[1]);
  }
  return result;
}

double BothLayers::scale(const Values& result) {
  double squares = 0;
  for (double v : result) squares += v * v;
  return 2 * std::sqrt(squares / static_cast<double>(result.size()));
}

void BothLayers::add(const Values& result, double weight, std::size_t token) {
  if (sums_.size() <= token) {
    sums_.resize(token + 1);
    squares_.resize(token + 1, 0.0);
  }
  Values& sum = sums_[token];
  sum.resize(result.size(), 0.0);
  for (std::size_t i = 0; i < result.size(); ++i) sum[i] += weight * result[i];
  squares_[token] += std::pow(weight * scale(result), 2);
}

void BothLayers::expect(std::size_t share, bool residual) {
  const std::size_t ranks = mc_.c.inputs.size(), tokens = ranks * share;
  sums_.resize(tokens);
  squares_.resize(tokens, 0.0);
  const auto shape = bound_shape(mc_.c.program, mc_.c.program.find_tensor("b_gate"));
  const std::size_t k = at(shape[2]);
  Values all;
  for (Values& sum : sums_) {
    sum.resize(k, 0.0);
    all.insert(all.end(), sum.begin(), sum.end());
  }
  expect_sums(mc_, all, share * k, residual);
  std::vector<Values>& scales = mc_.c.scales["out"];
  scales.resize(ranks);
  for (std::size_t r = 0; r < ranks; ++r) {
    scales[r].assign(mc_.out(r, "out").size(), 0.0);
    for (std::size_t i = 0; i < share * k; ++i) {
      // Each rank's result is rounded by itself.
      scales[r][i] = std::sqrt(squares_[r * share + i / k]);
    }
  }
}

AgGroupedDesc ag_grouped_gemm_desc(const OpShape& s) {
  auto d = layer_of<AgGroupedDesc>(s);
  d.c_dtype = s.dtype;
  d.swiglu = d.m % 2 == 0;
  return d;
}

GroupedRsDesc grouped_gemm_rs_desc(const OpShape& s, bool all_reduce) {
  auto d = layer_of<GroupedRsDesc>(s);
  d.out_dtype = s.dtype;
  d.residual = d.m % 2 == 0;
  d.all_reduce = all_reduce;
  return d;
}

MoeLayerDesc moe_layer_desc(const OpShape& s) {
  MoeLayerDesc d{.world_size = s.world_size,
                 .m = s.m > 0 ? s.m : 64,
                 .top_k = kTopK,
                 .num_experts = kExperts,
                 .hidden = s.k > 0 ? s.k : 128,
                 .ffn = s.n > 0 ? s.n : 128,
                 .dtype = s.dtype};
  d.residual = d.m % 2 == 0;
  return d;
}

OperatorInfo ag_grouped_gemm_info() {
  return {.name = "ag_grouped_gemm",
          .summary = "m gathered tokens of size k times weights [n, k] of their 2 experts",
          .program =
              [](const OpShape& s) {
                AgGroupedDesc d = ag_grouped_gemm_desc(s);
                return ag_grouped_gemm(d, ag_config(d, s));
              },
          .make_case = ag_case,
          .shapes = [](int world_size) -> std::vector<OpShape> {
            return with_test_configs(
                {{.world_size = world_size, .m = 9, .n = 13, .k = 19, .dtype = DType::kF32},
                 {.world_size = world_size, .m = 6, .n = 16, .k = 32, .dtype = DType::kBF16},
                 half_empty_tiles(world_size)});
          },
          .large = {.m = 4096, .n = 3584, .k = 4096, .dtype = DType::kBF16},
          .tables =
              [](const OpShape& s) {
                AgGroupedDesc d = ag_grouped_gemm_desc(s);
                return even_routing(d, ag_config(d, s));
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
                return moe_layer(d, layer_config(d, s));
              },
          .make_case = layer_case,
          .shapes = [](int world_size) -> std::vector<OpShape> {
            return with_test_configs(
                {{.world_size = world_size, .m = 9, .n = 13, .k = 19, .dtype = DType::kF32},
                 {.world_size = world_size, .m = 6, .n = 16, .k = 32, .dtype = DType::kBF16},
                 half_empty_tiles(world_size)});
          },
          .large = {.m = 8192, .n = 1792, .k = 4096, .dtype = DType::kBF16},
          .tables =
              [](const OpShape& s) {
                MoeLayerDesc d = moe_layer_desc(s);
                return even_routing(d, layer_config(d, s));
              }};
}

}  // namespace stretto
