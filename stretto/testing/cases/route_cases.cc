// The fp64 reference of routing: by sorting, group by group and token by token.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "stretto/ops/moe/moe_shapes.h"
#include "stretto/testing/cases/cases.h"
#include "stretto/testing/cases/route_case.h"
#include "stretto/testing/cases/routing_case.h"

namespace stretto {
namespace {

// The first `count` of the indices of `values`, best first, equal ones in order.
std::vector<std::size_t> best_of(const Values& values, std::size_t count) {
  std::vector<std::size_t> order(values.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return values[a] > values[b]; });
  order.resize(count);
  return order;
}

// Whether rounding to f32 may order values otherwise, or make some equal.
bool nearly_equal(Values values) {
  constexpr double kApart = 1e-5;
  std::sort(values.begin(), values.end());
  for (std::size_t i = 1; i < values.size(); ++i) {
    if (values[i] - values[i - 1] < kApart) return true;
  }
  return false;
}

// Groups are compared by sums of scores that may be equal without a bias.
bool by_sums(const RouteDesc& d) {
  return d.n_group > 1 && d.group_score == GroupScore::kBestTwo && !d.bias;
}

// Scores are exact, and every token has the experts of `chosen`, best first, then the others in
// turn: x is what its logits are to be, which the weights leave as they are.
void steer(const RouteDesc& d, const std::vector<std::int32_t>& chosen, MoeCase& mc,
           std::size_t r) {
  constexpr double kStep = 0.25;
  Values &x = mc.in(r, "x"), &gate = mc.in(r, "gate");
  std::fill(x.begin(), x.end(), 0.0);
  std::fill(gate.begin(), gate.end(), 0.0);
  if (d.bias) std::fill(mc.in(r, "bias").begin(), mc.in(r, "bias").end(), 0.0);
  for (std::int64_t e = 0; e < d.shape.num_experts; ++e) gate[at(e * d.hidden + e)] = 1;
  for (std::int64_t t = 0; t < mc.m; ++t) {
    double* logits = x.data() + t * d.hidden;
    const std::int32_t* experts = chosen.data() + t * d.shape.top_k;
    double logit = kStep * static_cast<double>(d.shape.num_experts);
    for (std::int64_t i = 0; i < d.shape.top_k + d.shape.num_experts; ++i) {
      const std::int64_t e =
          i < d.shape.top_k ? experts[i] : (experts[0] + i - d.shape.top_k) % d.shape.num_experts;
      if (logits[e] != 0) continue;
      logits[e] = logit;
      logit -= kStep;
    }
  }
}

// Logits are exact then, and some of them equal.
void round_to_quarters(Values& values) {
  for (double& v : values) v = std::round(v * 4) / 4;
}

// Of one token: its experts, best first, and their weights.
struct Choice {
  std::vector<std::size_t> experts;
  Values weights;
  bool uncertain = false;
};

Choice choose(const RouteDesc& d, const double* x, const Values& gate, const Values& bias) {
  Values logits(at(d.shape.num_experts));
  for (std::size_t e = 0; e < logits.size(); ++e) {
    logits[e] = std::inner_product(x, x + d.hidden, gate.data() + e * at(d.hidden), 0.0);
  }
  Values scores = logits;
  double peak = *std::max_element(logits.begin(), logits.end()), all = 0;
  for (double& s : scores) all += s = std::exp(s - peak);
  for (double& s : scores) s /= all;
  if (d.scoring_func == Scoring::kSigmoid) {
    std::transform(logits.begin(), logits.end(), scores.begin(),
                   [](double l) { return 1 / (1 + std::exp(-l)); });
  }
  Values by = scores;
  if (d.bias) std::transform(by.begin(), by.end(), bias.begin(), by.begin(), std::plus<>());
  Choice out;
  bool sums = d.n_group > 1 && d.group_score == GroupScore::kBestTwo;
  if (!d.bias && !sums) by = logits;  // the same order
  if (d.bias || sums) out.uncertain = nearly_equal(by);
  if (d.n_group > 1) {
    std::size_t size = by.size() / at(d.n_group);
    Values groups;
    for (std::size_t first = 0; first < by.size(); first += size) {
      Values own(by.begin() + static_cast<std::ptrdiff_t>(first),
                 by.begin() + static_cast<std::ptrdiff_t>(first + size));
      std::sort(own.rbegin(), own.rend());
      groups.push_back(sums ? own[0] + own[1] : own[0]);
    }
    if (sums) out.uncertain = out.uncertain || nearly_equal(groups);
    std::vector<std::size_t> open = best_of(groups, at(d.topk_group));
    for (std::size_t e = 0; e < by.size(); ++e) {
      bool is_open = std::find(open.begin(), open.end(), e / size) != open.end();
      if (!is_open) by[e] = -std::numeric_limits<double>::infinity();
    }
  }
  out.experts = best_of(by, at(d.shape.top_k));
  double sum = 0;
  for (std::size_t e : out.experts) sum += scores[e];
  for (std::size_t e : out.experts) {
    out.weights.push_back(scores[e] / (d.norm_topk_prob ? sum : 1) * d.routed_scaling_factor);
  }
  return out;
}

std::vector<Choice> choose_all(const RouteDesc& d, MoeCase& mc, std::size_t r) {
  std::vector<Choice> choices;
  for (std::int64_t t = 0; t < mc.m; ++t) {
    choices.push_back(choose(d, mc.in(r, "x").data() + t * d.hidden, mc.in(r, "gate"),
                             d.bias ? mc.in(r, "bias") : Values{}));
  }
  return choices;
}

void expect_route(const RouteDesc& d, MoeCase& mc, std::size_t r,
                  const std::vector<Choice>& choices) {
  std::vector<std::vector<std::size_t>> of(at(d.shape.num_experts));  // (token, place), flat
  for (std::size_t t = 0; t < choices.size(); ++t) {
    for (std::size_t j = 0; j < at(d.shape.top_k); ++j) {
      std::size_t flat = t * at(d.shape.top_k) + j;
      mc.out(r, "weights")[flat] = choices[t].weights[j];
      of[choices[t].experts[j]].push_back(flat);
    }
  }
  std::size_t row = 0;
  for (std::size_t e = 0; e < of.size(); ++e) {
    mc.out(r, "offsets")[e] = static_cast<double>(row);
    for (std::size_t flat : of[e]) {
      mc.out(r, "tokens")[row] = static_cast<double>(flat / at(d.shape.top_k));
      mc.out(r, "slots")[flat] = static_cast<double>(row++);
    }
  }
  mc.out(r, "offsets")[of.size()] = static_cast<double>(row);
}

}  // namespace

OpCase route_case(const RouteDesc& d, const RouteConfig& config, std::uint64_t seed,
                  std::optional<std::int64_t> rows) {
  MoeCase mc(moe_route(d, config), d.shape.m, seed, rows);
  mc.c.config = fmt::format("moe_route {} m={}", to_string(d), mc.m);
  mc.c.tolerance = sum_tolerance(DType::kF32, d.hidden) * 3;
  mc.c.scale = d.routed_scaling_factor;
  constexpr std::int64_t kMostSteered = 64;  // more logits would not be exact in every dtype
  const Routing routing = routing_of(seed);
  const bool steered =
      routing != Routing::kRandom && d.shape.num_experts <= std::min(d.hidden, kMostSteered);
  const RoutedTokens routed{.tokens = mc.m,
                            .top_k = d.shape.top_k,
                            .split = {d.shape.num_experts},
                            .tile_rows = config.placing.part_tokens};
  for (std::size_t r = 0; r < mc.c.inputs.size(); ++r) {
    if (steered) steer(d, different_experts(routed, routing, seed + r), mc, r);
    std::vector<Choice> choices;
    for (std::uint64_t i = 0;; ++i) {
      for (const char* name : {"x", "gate"}) {
        if (!by_sums(d)) round_to_quarters(mc.in(r, name));
      }
      choices = choose_all(d, mc, r);
      bool uncertain = std::any_of(choices.begin(), choices.end(),
                                   [](const Choice& choice) { return choice.uncertain; });
      constexpr std::uint64_t kMostTries = 100;
      if (!uncertain || i == kMostTries) break;
      std::uint64_t draw = (seed * 977 + r) * 1024 + 4 * i;
      Values &x = mc.in(r, "x"), &gate = mc.in(r, "gate");
      x = random_values(x.size(), d.dtype, draw);
      gate = random_values(gate.size(), d.weight_dtype, draw + 1);
      if (d.bias) mc.in(r, "bias") = random_values(at(d.shape.num_experts), DType::kF32, draw + 2);
    }
    expect_route(d, mc, r, choices);
  }
  return std::move(mc.c);
}

std::vector<OperatorCase> route_cases() {
  auto of = [](RouteDesc (*desc)(const OpShape&)) {
    return [desc](const OpShape& s, std::uint64_t seed) {
      return route_case(desc(s), route_config(desc(s), s), seed, s.rows);
    };
  };
  return {{"moe_route", of(route_desc)}, {"moe_route_limited", of(limited_route_desc)}};
}

}  // namespace stretto
