// Plain fp64 references of a mixture of experts: one product per row, one sum per token.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "stretto/ops/moe/combine.h"
#include "stretto/ops/moe/even_routing.h"
#include "stretto/ops/moe/moe_shapes.h"
#include "stretto/testing/cases/cases.h"
#include "stretto/testing/cases/gemm_case.h"
#include "stretto/testing/cases/grouped_case.h"
#include "stretto/testing/cases/routing_case.h"
#include "stretto/testing/cases/tp_case.h"

namespace stretto {
namespace {

// --- grouped_gemm ---

// A sum of k products, and what OpCase::scales has of it: three times the root of its terms'
// squares, which is sqrt(k) for factors in [-1, 1]. Scales of blocks make some rows far smaller.
struct SumOfProducts {
  double value = 0, scale = 0;
  SumOfProducts(const double* x, const double* w, std::int64_t k) {
    for (std::int64_t i = 0; i < k; ++i) value += x[i] * w[i], scale += x[i] * x[i] * w[i] * w[i];
    scale = 3 * std::sqrt(scale);
  }
};

// The first row of each expert and the end.
Values offsets_of(const RoutedTokens& of, std::uint64_t seed) {
  Values offsets(at(of.split.num_experts + 1), 0.0);
  for (std::int32_t e : chosen_experts(of, seed)) offsets[at(e + 1)] += 1;
  std::partial_sum(offsets.begin(), offsets.end(), offsets.begin());
  return offsets;
}

// Rows that the experts of a rank have of as many as there is room for.
Values masked_counts(const RoutedTokens& of, std::int64_t room, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  const std::int64_t experts = of.split.num_experts, rows = of.tile_rows;
  const std::int64_t near_tile[] = {rows, rows - 1, rows + 1};
  Values counts(at(experts));
  for (std::int64_t e = 0; e < experts; ++e) {
    std::int64_t count = std::uniform_int_distribution<std::int64_t>(0, room)(random);
    switch (routing_of(seed)) {
      case Routing::kRandom:
        break;
      case Routing::kEven:
        count = room;
        break;
      case Routing::kSkewed:
        count = random() % 2 == 0 ? count : 0;
        break;
      case Routing::kOneExpert:
        count = e == static_cast<std::int64_t>(seed / kNumRoutings) % experts ? room : 0;
        break;
      case Routing::kLastExpert:
        count = e + 1 == experts ? room : 0;
        break;
      case Routing::kOneRank:
      case Routing::kNextRank:
        count = 0;
        break;
      case Routing::kOnePerExpert:
        count = std::min<std::int64_t>(room, 1);
        break;
      case Routing::kTileRows:
        count = std::min(room, near_tile[e % 3]);
        break;
    }
    counts[at(e)] = static_cast<double>(count);
  }
  return counts;
}

// Input `name` [rows, columns, k] of a rank, times the scale of every 128 of k and `block` columns.
Values scaled_values(const GroupedDesc& d, MoeCase& mc, std::size_t r, const std::string& name,
                     std::int64_t columns, std::int64_t block) {
  Values values = mc.in(r, name);
  if (d.scaling == Scaling::kNone) return values;
  const Values& scales = mc.in(r, "scale_" + name);
  std::int64_t blocks = ceil_div(columns, block), blocks_of_k = ceil_div(d.k, kScaleBlock);
  for (std::size_t i = 0; i < values.size(); ++i) {
    auto flat = static_cast<std::int64_t>(i);
    std::int64_t outer = flat / d.k / columns, column = flat / d.k % columns;
    std::int64_t scale = (outer * blocks + column / block) * blocks_of_k + flat % d.k / kScaleBlock;
    values[i] *= scales[at(scale)];
  }
  return values;
}

void expect_products(const GroupedDesc& d, MoeCase& mc, std::size_t r) {
  bool masked = d.layout == RowLayout::kMasked;
  const Values& table = mc.in(r, masked ? "counts" : "offsets");
  Values& scales = mc.c.scales["c"].emplace_back(mc.out(r, "c").size(), 0.0);
  ExpertSplit split = split_of(d);
  auto rank = static_cast<int>(r);
  Values a = scaled_values(d, mc, r, "a", 1, 1);
  std::vector<Values> weights;
  for (const char* name : d.swiglu ? std::vector{"b_gate", "b_up"} : std::vector{"b"}) {
    weights.push_back(scaled_values(d, mc, r, name, d.n, kScaleBlock));
  }
  for (std::int64_t e = split.first(rank); e < split.end(rank); ++e) {
    std::int64_t own = e - split.first(rank);
    std::int64_t first = masked ? own * mc.m : static_cast<std::int64_t>(table[at(e)]);
    auto end = masked ? first + static_cast<std::int64_t>(table[at(own)])
                      : static_cast<std::int64_t>(table[at(e + 1)]);
    for (std::int64_t row = first; row < end; ++row) {
      auto from = d.gathered ? static_cast<std::int64_t>(mc.in(r, "tokens")[at(row)]) : row;
      double squares = 0;
      for (std::int64_t col = 0; col < d.n; ++col) {
        auto sum = [&](const Values& b) {
          return SumOfProducts(a.data() + from * d.k, b.data() + (own * d.n + col) * d.k, d.k);
        };
        auto bias = [&](const char* name) {
          return d.bias ? mc.in(r, name)[at(own * d.n + col)] : 0.0;
        };
        const SumOfProducts first_sum = sum(weights[0]);
        double value = first_sum.value + bias(d.swiglu ? "bias_gate" : "bias");
        if (d.swiglu) {
          value = gate_and_factor(d.gate, value, sum(weights[1]).value + bias("bias_up"));
        }
        mc.out(r, "c")[at(row * d.n + col)] = value;
        scales[at(row * d.n + col)] = first_sum.scale;
        squares += value * value;
      }
      // Of two products' product, what its row has.
      const double of_row = 3 * std::sqrt(squares / static_cast<double>(d.n));
      if (d.swiglu) std::fill_n(scales.begin() + row * d.n, d.n, of_row);
    }
  }
}

// --- sorted_gemm_rs ---

// Where each pair of a token and an expert has its row.
Values slots_of(const std::vector<std::int32_t>& chosen, Values next) {
  Values slots;
  for (std::int32_t e : chosen) slots.push_back(next[at(e)]++);
  return slots;
}

OpCase sorted_case(const OpShape& s, std::uint64_t seed, bool all_reduce) {
  const SortedRsDesc d = sorted_gemm_rs_desc(s, all_reduce);
  const SortedRsConfig cfg = sorted_gemm_rs_config(d, s);
  const GroupedDesc& p = d.products;
  MoeCase mc(sorted_gemm_rs(d, cfg), p.m, seed, s.rows);
  mc.c.config = fmt::format("{} | {} | m={}", to_string(d), to_string(cfg), mc.m);
  mc.c.tolerance = sum_tolerance(p.c_dtype, p.k) * 2 + factor_tolerance(p.a_dtype, p.k);
  const ExpertSplit split = split_of(p);
  const RoutedTokens routed{.tokens = mc.m,
                            .top_k = p.rows_per_token,
                            .split = split,
                            .tile_rows = cfg.sums.loop.tile.bm};
  const std::vector<std::int32_t> chosen = chosen_experts(routed, seed);
  const Values offsets = offsets_of(routed, seed), slots = slots_of(chosen, offsets);
  const Values weights = mc.in(0, "weights");
  const std::int64_t share = ceil_div(mc.m, std::int64_t{p.world_size});
  // Of `out`, whose terms their weights may make small, too.
  Values sums(at(p.world_size * share * p.n), 0.0), scales = sums;
  for (std::size_t r = 0; r < mc.c.inputs.size(); ++r) {
    std::copy(slots.begin(), slots.end(), mc.in(r, "slots").begin());
    mc.in(r, "offsets") = offsets;
    mc.in(r, "weights") = weights;
    const Values a = scaled_values(p, mc, r, "a", 1, 1);
    const Values b = scaled_values(p, mc, r, "b", p.n, kScaleBlock);
    const std::int64_t first = split.first(static_cast<int>(r)),
                       end = split.end(static_cast<int>(r));
    Values& of_products = mc.c.scales["products"].emplace_back(mc.out(r, "products").size(), 0.0);
    for (std::size_t pair = 0; pair < chosen.size(); ++pair) {
      if (chosen[pair] < first || chosen[pair] >= end) continue;
      const auto row = static_cast<std::int64_t>(slots[pair]);
      mc.c.flops += 2.0 * static_cast<double>(p.n * p.k);
      for (std::int64_t col = 0; col < p.n; ++col) {
        const double* x = a.data() + row * p.k;
        const double* w = b.data() + ((chosen[pair] - first) * p.n + col) * p.k;
        const SumOfProducts sum(x, w, p.k);
        const std::size_t of_token = pair / at(p.rows_per_token) * at(p.n) + at(col);
        mc.out(r, "products")[at(row * p.n + col)] = sum.value;
        of_products[at(row * p.n + col)] = sum.scale;
        sums[of_token] += weights[pair] * sum.value;
        scales[of_token] += std::fabs(weights[pair]) * sum.scale;
      }
    }
  }
  const std::size_t count = at((all_reduce ? mc.m : share) * p.n);
  for (std::size_t r = 0; r < mc.c.inputs.size(); ++r) {
    if (all_reduce && d.residual) mc.in(r, "residual") = mc.in(0, "residual");
    Values& out = mc.out(r, "out");
    Values& of_out = mc.c.scales["out"].emplace_back(out.size(), 0.0);
    const auto first = static_cast<std::ptrdiff_t>(all_reduce ? 0 : r * count);
    std::copy_n(sums.begin() + first, count, out.begin());
    std::copy_n(scales.begin() + first, count, of_out.begin());
    for (std::size_t i = 0; d.residual && i < count; ++i) {
      out[i] += mc.in(r, "residual")[i];
      of_out[i] += std::fabs(mc.in(r, "residual")[i]);
    }
  }
  return std::move(mc.c);
}

// --- moe_combine ---

OpCase combine_case(const OpShape& s, std::uint64_t seed) {
  CombineDesc d = combine_desc(s);
  const CombineConfig cfg = combine_config(d, s);
  MoeCase mc(moe_combine(d, cfg), d.shape.m, seed, s.rows);
  mc.c.config = fmt::format("moe_combine {} m={}", to_string(d), mc.m);
  mc.c.tolerance = sum_tolerance(d.dtype, d.shape.top_k * d.shape.world_size) * 2;
  mc.c.scale = static_cast<double>(d.shape.world_size);
  Values slots(at(mc.m * d.shape.top_k));
  std::iota(slots.begin(), slots.end(), 0.0);
  std::shuffle(slots.begin(), slots.end(), std::mt19937_64(seed));
  slots.resize(at(d.shape.m * d.shape.top_k), 0.0);
  Values weights = mc.in(0, "weights"), sums(at(mc.m * d.hidden), 0.0);
  ExpertSplit split = split_of(d);
  Values offsets = offsets_of(
      {.tokens = mc.m, .top_k = d.shape.top_k, .split = split, .tile_rows = cfg.tile_rows}, seed);
  for (std::size_t r = 0; r < mc.c.inputs.size(); ++r) {
    mc.in(r, "slots") = slots;
    mc.in(r, "weights") = weights;
    if (d.expert_groups > 1) mc.in(r, "offsets") = offsets;
    double first = offsets[at(split.first(static_cast<int>(r)))];
    double end = offsets[at(split.end(static_cast<int>(r)))];
    for (std::int64_t i = 0; i < mc.m * d.shape.top_k * d.hidden; ++i) {
      std::int64_t pair = i / d.hidden, col = i % d.hidden;
      if (slots[at(pair)] < first || slots[at(pair)] >= end) continue;
      sums[at(pair / d.shape.top_k * d.hidden + col)] +=
          weights[at(pair)] *
          mc.in(r, "y")[at(static_cast<std::int64_t>(slots[at(pair)]) * d.hidden + col)];
    }
  }
  std::int64_t share =
      d.sequence_parallel ? ceil_div(mc.m, std::int64_t{d.shape.world_size}) : mc.m;
  for (std::size_t r = 0; r < mc.c.inputs.size(); ++r) {
    std::int64_t first = d.sequence_parallel ? static_cast<std::int64_t>(r) * share : 0;
    const Values& residual = mc.in(r, "residual");
    for (std::int64_t i = 0; i < share * d.hidden; ++i) {
      bool exists = first * d.hidden + i < mc.m * d.hidden;
      mc.out(r, "out")[at(i)] = residual[at(i)] + (exists ? sums[at(first * d.hidden + i)] : 0);
    }
  }
  return std::move(mc.c);
}

}  // namespace

OpCase grouped_case(const GroupedDesc& d, const GroupedConfig& config, std::uint64_t seed,
                    std::optional<std::int64_t> rows) {
  MoeCase mc(grouped_gemm(d, config), d.m, seed, rows);
  mc.c.config = fmt::format("{} {} m={}", mc.c.program.name, to_string(d), mc.m);
  mc.c.tolerance = sum_tolerance(d.c_dtype, d.k) + factor_tolerance(d.a_dtype, d.k);
  std::int64_t of_tokens = mc.m * d.rows_per_token;
  double used = static_cast<double>(of_tokens) * split_of(d).ranks_per_group();
  if (d.layout == RowLayout::kMasked) used = 0;
  RoutedTokens routed{.tokens = mc.m,
                      .top_k = d.rows_per_token,
                      .split = split_of(d),
                      .tile_rows = config.loop.tile.bm};
  routed.split.num_experts += d.spare_rows ? 1 : 0;
  if (d.layout == RowLayout::kMasked) routed.split = {split_of(d).share()};
  for (std::size_t r = 0; r < mc.c.inputs.size(); ++r) {
    if (d.layout == RowLayout::kMasked) {
      Values& counts = mc.in(r, "counts");
      counts = masked_counts(routed, mc.m, seed + r);
      used = std::accumulate(counts.begin(), counts.end(), used);
    } else {
      mc.in(r, "offsets") = offsets_of(routed, seed + r);
    }
    if (d.gathered) {
      Values& tokens = mc.in(r, "tokens");
      tokens = random_values(tokens.size(), DType::kF32, seed * 7 + r);
      for (double& token : tokens) {
        token = std::floor((token + 1) / 2 * static_cast<double>(mc.m));
      }
    }
    expect_products(d, mc, r);
  }
  mc.c.flops = 2 * used * static_cast<double>(d.n * d.k) * (d.swiglu ? 2 : 1);
  return std::move(mc.c);
}

std::vector<OperatorCase> moe_cases() {
  auto sorted = [](bool all_reduce) {
    return [all_reduce](const OpShape& s, std::uint64_t seed) {
      return sorted_case(s, seed, all_reduce);
    };
  };
  auto grouped = [](GroupedDesc (*desc)(const OpShape&)) {
    return [desc](const OpShape& s, std::uint64_t seed) {
      GroupedDesc d = desc(s);
      return grouped_case(d, grouped_config(d, s), seed, s.rows);
    };
  };
  return {{"grouped_gemm", grouped(grouped_desc)},
          {"grouped_swiglu", grouped(grouped_swiglu_desc)},
          {"grouped_gemm_masked", grouped(grouped_masked_desc)},
          {"moe_combine", combine_case},
          {"sorted_gemm_rs", sorted(false)},
          {"sorted_gemm_ar", sorted(true)}};
}

}  // namespace stretto
