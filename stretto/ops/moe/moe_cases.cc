// Plain fp64 references of a mixture of experts: routing by sorting, one product per row, one sum
// per token.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "stretto/ops/moe/combine.h"
#include "stretto/ops/moe/grouped_gemm.h"
#include "stretto/ops/moe/moe_case.h"
#include "stretto/ops/moe/route.h"

namespace stretto {
namespace {

// A rank with experts of its own, where half the ranks could have parts of each: by size.
int groups_of(const OpShape& s) {
  if (s.m == 16 || s.m == 6) return s.world_size;
  return s.m == 9 && s.world_size % 2 == 0 ? s.world_size / 2 : 1;
}

// --- moe_route ---

RouteDesc route_desc(const OpShape& s) {
  RouteDesc d{.dtype = s.dtype,
              .weight_dtype = s.dtype,
              .m = s.m > 0 ? s.m : 64,
              .hidden = s.k > 0 ? s.k : 128,
              .num_experts = s.n > 0 ? s.n : 16,
              .normalize = s.m % 2 == 1,
              .world_size = s.world_size};
  d.top_k = std::min<std::int64_t>(d.num_experts, 3);
  return d;
}

RouteConfig route_config(const RouteDesc& d, Target target) {
  RouteConfig c = default_config(d, target);
  if (target == Target::kCuda) return c;
  c.tile_rows = std::min<std::int64_t>(c.tile_rows, 4);
  c.count_rows = std::min<std::int64_t>(c.count_rows, 4);
  c.tile_slots = std::min<std::int64_t>(c.tile_slots, 8);
  c.num_workers = 2;
  return c;
}

// Probabilities of one token, and the experts by falling score.
struct Choice {
  Values probability;
  std::vector<std::int64_t> order;
};

Choice choose(const RouteDesc& d, const double* x, const Values& gate) {
  Choice out{.probability = Values(at(d.num_experts), 0.0)};
  for (std::int64_t e = 0; e < d.num_experts; ++e) {
    for (std::int64_t i = 0; i < d.hidden; ++i) {
      out.probability[at(e)] += x[i] * gate[at(e * d.hidden + i)];
    }
  }
  out.order.resize(at(d.num_experts));
  std::iota(out.order.begin(), out.order.end(), 0);
  std::stable_sort(out.order.begin(), out.order.end(), [&](std::int64_t a, std::int64_t b) {
    return out.probability[at(a)] > out.probability[at(b)];
  });
  double peak = out.probability[at(out.order[0])], sum = 0;
  for (double& p : out.probability) sum += p = std::exp(p - peak);
  for (double& p : out.probability) p /= sum;
  return out;
}

void expect_route(const RouteDesc& d, MoeCase& mc, std::size_t r) {
  std::vector<std::vector<std::pair<std::int64_t, std::int64_t>>> of(at(d.num_experts));
  for (std::int64_t t = 0; t < mc.m; ++t) {
    Choice choice = choose(d, mc.in(r, "x").data() + t * d.hidden, mc.in(r, "gate"));
    double sum = 0;
    for (std::int64_t j = 0; j < d.top_k; ++j) sum += choice.probability[at(choice.order[at(j)])];
    for (std::int64_t j = 0; j < d.top_k; ++j) {
      std::int64_t expert = choice.order[at(j)];
      mc.out(r, "weights")[at(t * d.top_k + j)] =
          choice.probability[at(expert)] / (d.normalize ? sum : 1);
      of[at(expert)].emplace_back(t, j);
    }
  }
  double row = 0;
  for (std::int64_t e = 0; e < d.num_experts; ++e) {
    mc.out(r, "offsets")[at(e)] = row;
    for (auto [t, j] : of[at(e)]) {
      mc.out(r, "tokens")[static_cast<std::size_t>(row)] = static_cast<double>(t);
      mc.out(r, "slots")[at(t * d.top_k + j)] = row++;
    }
  }
  mc.out(r, "offsets")[at(d.num_experts)] = row;
}

OpCase route_case(const OpShape& s, std::uint64_t seed) {
  RouteDesc d = route_desc(s);
  MoeCase mc(moe_route(d, route_config(d, s.target)), d.m, seed);
  mc.c.config = fmt::format("moe_route {} m={}", to_string(d), mc.m);
  mc.c.tolerance = sum_tolerance(DType::kF32, d.hidden) * 3;
  for (std::size_t r = 0; r < mc.c.inputs.size(); ++r) {
    // In quarters, so that scores are exact and some of them equal.
    for (const char* name : {"x", "gate"}) {
      for (double& v : mc.in(r, name)) v = std::round(v * 4) / 4;
    }
    expect_route(d, mc, r);
  }
  return std::move(mc.c);
}

// --- grouped_gemm ---

GroupedDesc grouped_desc(const OpShape& s) {
  return {.world_size = s.world_size,
          .m = s.m > 0 ? s.m : 64,
          .rows_per_token = 2,
          .num_experts = s.m > 1000 ? 32 : 5,
          .expert_groups = groups_of(s),
          .n = s.n > 0 ? s.n : 128,
          .k = s.k > 0 ? s.k : 128,
          .a_dtype = s.dtype,
          .b_dtype = s.dtype,
          .c_dtype = s.dtype};
}

GroupedDesc swiglu_desc(const OpShape& s) {
  GroupedDesc d = grouped_desc(s);
  d.gathered = d.swiglu = true;
  d.spare_rows = s.m == 9;
  return d;
}

GroupedConfig grouped_config(const GroupedDesc& d, Target target) {
  GroupedConfig c = default_config(d, target);
  if (target == Target::kCpu && d.m <= 64) c.tile.bm = 4, c.num_compute_sms = 2;
  return c;
}

// Cuts [0, rows) into parts; by seed: at random, all in one part, alike.
Values random_offsets(std::int64_t parts, std::int64_t rows, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  Values cuts(at(parts + 1), 0.0);
  std::uint64_t pattern = seed % 4;
  for (std::int64_t i = 1; i < parts; ++i) {
    std::int64_t cut = std::uniform_int_distribution<std::int64_t>(0, rows)(random);
    if (pattern == 0) cut = i <= static_cast<std::int64_t>(seed / 4) % parts ? 0 : rows;
    if (pattern == 1) cut = i * rows / parts;
    cuts[at(i)] = static_cast<double>(cut);
  }
  cuts[at(parts)] = static_cast<double>(rows);
  std::sort(cuts.begin(), cuts.end());
  return cuts;
}

void expect_products(const GroupedDesc& d, MoeCase& mc, std::size_t r) {
  const Values& offsets = mc.in(r, "offsets");
  ExpertSplit split = split_of(d);
  auto rank = static_cast<int>(r);
  for (std::int64_t e = split.first(rank); e < split.end(rank); ++e) {
    for (auto row = static_cast<std::int64_t>(offsets[at(e)]);
         row < static_cast<std::int64_t>(offsets[at(e + 1)]); ++row) {
      auto from = d.gathered ? static_cast<std::int64_t>(mc.in(r, "tokens")[at(row)]) : row;
      for (std::int64_t col = 0; col < d.n; ++col) {
        auto sum = [&](const char* name) {
          const double* x = mc.in(r, "a").data() + from * d.k;
          const double* b = mc.in(r, name).data() + ((e - split.first(rank)) * d.n + col) * d.k;
          return std::inner_product(x, x + d.k, b, 0.0);
        };
        double value = 0;
        if (d.swiglu) {
          double gate = sum("b_gate");
          value = gate / (1 + std::exp(-gate)) * sum("b_up");
        } else {
          value = sum("b");
        }
        mc.out(r, "c")[at(row * d.n + col)] = value;
      }
    }
  }
}

OpCase grouped_case(const GroupedDesc& d, Target target, std::uint64_t seed) {
  MoeCase mc(grouped_gemm(d, grouped_config(d, target)), d.m, seed);
  mc.c.config = fmt::format("{} {} m={}", mc.c.program.name, to_string(d), mc.m);
  mc.c.tolerance = sum_tolerance(d.c_dtype, d.k);
  mc.c.scale = std::sqrt(static_cast<double>(d.k));
  std::int64_t rows = mc.m * d.rows_per_token;
  mc.c.flops = 2.0 * static_cast<double>(rows * d.n * d.k) * (d.swiglu ? 2 : 1) *
               split_of(d).ranks_per_group();
  for (std::size_t r = 0; r < mc.c.inputs.size(); ++r) {
    mc.in(r, "offsets") = random_offsets(d.num_experts + (d.spare_rows ? 1 : 0), rows, seed + r);
    if (d.gathered) {
      Values& tokens = mc.in(r, "tokens");
      tokens = random_values(tokens.size(), DType::kF32, seed * 7 + r);
      for (double& token : tokens) {
        token = std::floor((token + 1) / 2 * static_cast<double>(mc.m));
      }
    }
    expect_products(d, mc, r);
  }
  return std::move(mc.c);
}

OperatorInfo grouped_info(const char* name, const char* summary,
                          GroupedDesc (*desc)(const OpShape&)) {
  return {.name = name,
          .summary = summary,
          .program =
              [desc](const OpShape& s) {
                return grouped_gemm(desc(s), grouped_config(desc(s), s.target));
              },
          .make_case = [desc](const OpShape& s,
                              std::uint64_t seed) { return grouped_case(desc(s), s.target, seed); },
          .shapes = [](int world_size) -> std::vector<OpShape> {
            return {{.world_size = world_size, .m = 9, .n = 29, .k = 51, .dtype = DType::kF32},
                    {.world_size = world_size, .m = 16, .n = 32, .k = 64, .dtype = DType::kBF16},
                    {.world_size = world_size, .m = 1, .n = 19, .k = 70, .dtype = DType::kF16}};
          },
          .large = {.m = 4096, .n = 1408, .k = 2048, .dtype = DType::kBF16}};
}

// --- moe_combine ---

CombineDesc combine_desc(const OpShape& s) {
  return {.dtype = s.dtype,
          .m = s.m > 0 ? s.m : 64,
          .hidden = s.n > 0 ? s.n : 128,
          .top_k = 3,
          .num_experts = 5,
          .expert_groups = groups_of(s),
          .sequence_parallel = s.m % 2 == 1,
          .world_size = s.world_size};
}

CombineConfig combine_config(const CombineDesc& d, Target target) {
  CombineConfig c = default_config(d, target);
  if (target == Target::kCpu) c.tile_rows = std::min<std::int64_t>(c.tile_rows, 4);
  return c;
}

OpCase combine_case(const OpShape& s, std::uint64_t seed) {
  CombineDesc d = combine_desc(s);
  MoeCase mc(moe_combine(d, combine_config(d, s.target)), d.m, seed);
  mc.c.config = fmt::format("moe_combine {} m={}", to_string(d), mc.m);
  mc.c.tolerance = sum_tolerance(d.dtype, d.top_k * d.world_size) * 2;
  mc.c.scale = static_cast<double>(d.world_size);
  Values slots(at(mc.m * d.top_k));
  std::iota(slots.begin(), slots.end(), 0.0);
  std::shuffle(slots.begin(), slots.end(), std::mt19937_64(seed));
  slots.resize(at(d.m * d.top_k), 0.0);
  Values weights = mc.in(0, "weights"), sums(at(mc.m * d.hidden), 0.0);
  Values offsets = random_offsets(d.num_experts, mc.m * d.top_k, seed);
  ExpertSplit split = split_of(d);
  for (std::size_t r = 0; r < mc.c.inputs.size(); ++r) {
    mc.in(r, "slots") = slots;
    mc.in(r, "weights") = weights;
    if (d.expert_groups > 1) mc.in(r, "offsets") = offsets;
    double first = offsets[at(split.first(static_cast<int>(r)))];
    double end = offsets[at(split.end(static_cast<int>(r)))];
    for (std::int64_t i = 0; i < mc.m * d.top_k * d.hidden; ++i) {
      std::int64_t pair = i / d.hidden, col = i % d.hidden;
      if (slots[at(pair)] < first || slots[at(pair)] >= end) continue;
      sums[at(pair / d.top_k * d.hidden + col)] +=
          weights[at(pair)] *
          mc.in(r, "y")[at(static_cast<std::int64_t>(slots[at(pair)]) * d.hidden + col)];
    }
  }
  std::int64_t share = d.sequence_parallel ? ceil_div(mc.m, std::int64_t{d.world_size}) : mc.m;
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

OperatorInfo moe_route_info() {
  return {
      .name = "moe_route",
      .summary = "top 3 of n experts for m tokens of hidden size k, and the tables of their rows",
      .program =
          [](const OpShape& s) {
            return moe_route(route_desc(s), route_config(route_desc(s), s.target));
          },
      .make_case = route_case,
      .shapes = [](int world_size) -> std::vector<OpShape> {
        return {{.world_size = world_size, .m = 11, .n = 7, .k = 19, .dtype = DType::kF32},
                {.world_size = world_size, .m = 6, .n = 16, .k = 32, .dtype = DType::kBF16},
                {.world_size = world_size, .m = 1, .n = 2, .k = 8, .dtype = DType::kF16}};
      },
      .large = {.m = 512, .n = 128, .k = 2048, .dtype = DType::kBF16}};
}

OperatorInfo grouped_gemm_info() {
  return grouped_info("grouped_gemm", "rows [2m, k] times the weights [n, k] of their experts",
                      grouped_desc);
}

OperatorInfo grouped_swiglu_info() {
  return grouped_info("grouped_swiglu",
                      "rows of m tokens, gathered, times both weights [n, k] of their experts",
                      swiglu_desc);
}

OperatorInfo moe_combine_info() {
  return {.name = "moe_combine",
          .summary = "weighted sum of the 3 results of m tokens of hidden size n, over the ranks",
          .program =
              [](const OpShape& s) {
                return moe_combine(combine_desc(s), combine_config(combine_desc(s), s.target));
              },
          .make_case = combine_case,
          .shapes = [](int world_size) -> std::vector<OpShape> {
            return {{.world_size = world_size, .m = 6, .n = 50, .dtype = DType::kF32},
                    {.world_size = world_size, .m = 9, .n = 33, .dtype = DType::kBF16},
                    {.world_size = world_size, .m = 1, .n = 16, .dtype = DType::kF16}};
          },
          .large = {.m = 4096, .n = 2048, .dtype = DType::kBF16}};
}

}  // namespace stretto
