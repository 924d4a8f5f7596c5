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
#include "stretto/ops/moe/moe_shapes.h"
#include "stretto/testing/cases/cases.h"
#include "stretto/testing/cases/routing_case.h"
#include "stretto/testing/cases/tp_case.h"

namespace stretto {
namespace {

constexpr std::int64_t kTopK = 2;  // of every desc (moe_shapes.h)

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
ExpertTileOrder order_of(std::uint64_t seed, const Desc& d) {
  ExpertTileOrder order{.stages = 1 + static_cast<int>(seed % at(d.shape.world_size))};
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

// Input "bias" beside "b", "bias_gate" beside "b_gate".
std::string bias_of(const std::string& weight) { return "bias" + weight.substr(1); }

// --- ag_grouped_gemm ---

OpCase ag_case(const OpShape& s, std::uint64_t seed) {
  AgGroupedDesc d = ag_grouped_gemm_desc(s);
  AgGroupedConfig cfg = ag_grouped_gemm_config(d, s);
  MoeCase mc(ag_grouped_gemm(d, cfg), d.shape.m, seed, s.rows);
  mc.c.config = fmt::format("{} | {} | m={}", to_string(d), to_string(cfg), mc.m);
  mc.c.tolerance = sum_tolerance(d.c_dtype, d.k);
  mc.c.scale = std::sqrt(static_cast<double>(d.k));
  mc.c.flops =
      2.0 * static_cast<double>(mc.m * kTopK * d.n * d.k) * (d.swiglu ? 2 : 1) * d.shape.world_size;
  ExpertTiles tiles = tiles_of(d, cfg);
  std::vector<std::int32_t> chosen = chosen_experts(routed_tokens(tiles, mc.m), seed);
  std::size_t ranks = mc.c.inputs.size(), k = at(d.k);
  std::size_t share = at(ceil_div(mc.m, std::int64_t{d.shape.world_size}));
  mc.c.comm_bytes = static_cast<double>((ranks - 1) * share * k * size_bytes(d.a_dtype));
  expect_gathered(mc, share * k);
  for (std::size_t r = 0; r < ranks; ++r) {
    TileTables tables = tile_tables(tiles, static_cast<int>(r), mc.m, chosen, order_of(seed, d));
    set_tile_tables(mc, r, tables);
    set_token_tables(mc, r, tables);
    Values& c = mc.out(r, "c");
    std::fill(c.begin(), c.end(), 0.0);
    // Rows without a token, in tiles with others, are those of a token of zeros.
    for (std::int64_t i = 0; d.bias && i < tables.used * tiles.tile_rows * d.n; ++i) {
      const std::int64_t expert = tables.experts[at(i / d.n / tiles.tile_rows)];
      auto bias = [&](const char* name) { return mc.in(r, name)[at(expert * d.n + i % d.n)]; };
      c[at(i)] =
          d.swiglu ? gate_and_factor(d.gate, bias("bias_gate"), bias("bias_up")) : bias("bias");
    }
    for (std::size_t pair = 0; pair < chosen.size(); ++pair) {
      std::size_t token = pair / at(kTopK);
      const double* x = mc.in(token / share, "a").data() + token % share * k;
      auto sum = [&](const char* name, std::int64_t col) {
        const std::int64_t at_col = chosen[pair] * d.n + col;
        return product(x, mc.in(r, name).data() + at(at_col * d.k), d.k) +
               (d.bias ? mc.in(r, bias_of(name))[at(at_col)] : 0.0);
      };
      for (std::int64_t col = 0; col < d.n; ++col) {
        double value = d.swiglu ? sum("b_gate", col) : sum("b", col);
        if (d.swiglu) value = gate_and_factor(d.gate, value, sum("b_up", col));
        c.at(at(tables.slots[pair] * d.n + col)) = value;
      }
    }
  }
  return std::move(mc.c);
}

// --- grouped_gemm_rs ---

OpCase sums_case(const OpShape& s, std::uint64_t seed, bool all_reduce) {
  GroupedRsDesc d = grouped_gemm_rs_desc(s, all_reduce);
  GroupedRsConfig cfg = grouped_gemm_rs_config(d, s);
  MoeCase mc(grouped_gemm_rs(d, cfg), d.shape.m, seed, s.rows);
  mc.c.config = fmt::format("{} | {} | m={}", to_string(d), to_string(cfg), mc.m);
  mc.c.tolerance = sum_tolerance(d.out_dtype, d.k) * 2;
  mc.c.scale = std::sqrt(static_cast<double>(d.k)) * d.shape.world_size;
  mc.c.flops = 2.0 * static_cast<double>(mc.m * kTopK * d.n * d.k) * d.shape.world_size;
  ExpertTiles tiles = tiles_of(d, cfg);
  std::vector<std::int32_t> chosen = chosen_experts(routed_tokens(tiles, mc.m), seed);
  std::size_t ranks = mc.c.inputs.size(), n = at(d.n);
  std::size_t share = at(ceil_div(mc.m, std::int64_t{d.shape.world_size}));
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
        double value = product(x, w, d.k);
        if (d.bias_ranks > 0 && r % at(d.bias_ranks) == 0) {
          value += mc.in(r, "bias")[at(chosen[pair]) * n + col];
        }
        sums[pair / at(kTopK) * n + col] += weights[pair] * value;
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

// --- moe_layer ---

OpCase layer_case(const OpShape& s, std::uint64_t seed) {
  MoeLayerDesc d = moe_layer_desc(s);
  MoeLayerConfig cfg = moe_layer_config(d, s);
  MoeCase mc(moe_layer(d, cfg), d.shape.m, seed, s.rows);
  mc.c.config = fmt::format("{} | {} | m={}", to_string(d), to_string(cfg), mc.m);
  mc.c.tolerance = sum_tolerance(d.dtype, d.ffn) + 2 * sum_tolerance(d.dtype, d.hidden);
  double ffn = static_cast<double>(d.ffn), hidden = static_cast<double>(d.hidden);
  mc.c.flops = 6.0 * static_cast<double>(mc.m * kTopK) * hidden * ffn * d.shape.world_size;
  ExpertTiles tiles = tiles_of(d, cfg);
  std::vector<std::int32_t> chosen = chosen_experts(routed_tokens(tiles, mc.m), seed);
  std::size_t ranks = mc.c.inputs.size(), k = at(d.hidden);
  std::size_t share = at(ceil_div(mc.m, std::int64_t{d.shape.world_size}));
  mc.c.comm_bytes = static_cast<double>(2 * (ranks - 1) * share * k * size_bytes(d.dtype));
  expect_gathered(mc, share * k);
  Values weights = mc.in(0, "weights");
  BothLayers layers(mc, d);
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

}  // namespace

double gate_and_factor(const GatedUnit& unit, double gate, double factor) {
  double g = std::min(gate, unit.limit), sigmoid = 1 / (1 + std::exp(-unit.alpha * g));
  return (std::clamp(factor, -unit.limit, unit.limit) + unit.beta) * (g * sigmoid);
}

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
  const bool biases = mc_.c.program.find_tensor("bias") >= 0;
  auto bias = [&](const char* name, std::size_t at_col) {
    return biases ? mc_.in(row.rank, name)[at_col] : 0.0;
  };
  Values between(n), result(k);
  for (std::size_t col = 0; col < n; ++col) {
    std::size_t at_col = row.expert * n + col;
    auto times = [&](const Values& w) { return product(x, w.data() + at_col * k, shape[2]); };
    between[col] = gate_and_factor(gate_, times(gate) + bias("bias_gate", at_col),
                                   times(up) + bias("bias_up", at_col));
  }
  const bool adds = row.rank % bias_ranks_ == 0;
  for (std::size_t col = 0; col < k; ++col) {
    std::size_t at_col = row.expert * k + col;
    result[col] = product(between.data(), down.data() + at_col * n, shape[1]) +
                  (adds ? bias("bias", at_col) : 0.0);
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

std::vector<OperatorCase> tp_cases() {
  auto sums = [](bool all_reduce) {
    return [all_reduce](const OpShape& s, std::uint64_t seed) {
      return sums_case(s, seed, all_reduce);
    };
  };
  return {{"ag_grouped_gemm", ag_case},
          {"grouped_gemm_rs", sums(false)},
          {"grouped_gemm_ar", sums(true)},
          {"moe_layer", layer_case}};
}

}  // namespace stretto
