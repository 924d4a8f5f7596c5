#include "bench/gpu/experts/routings.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <random>
#include <utility>

#include "stretto/base/at.h"

namespace stretto::bench {
namespace {

constexpr std::array<const char*, kNumRoutingKinds> kNames = {
    "uniform",    "zipf",         "zipf of each rank", "empty",
    "one expert", "same experts", "at home",           "one-sided"};
// Weights of experts that are taken where there are no others, and of one that always is.
constexpr double kElse = 1e-30, kAlways = 1e30;

using Weights = std::vector<double>;  // [num_experts]

std::vector<std::size_t> order_by_lot(std::int64_t num, std::mt19937_64& random) {
  std::vector<std::size_t> order(at(num));
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::shuffle(order.begin(), order.end(), random);
  return order;
}

Weights of_some(const std::vector<std::size_t>& experts, std::int64_t num_experts) {
  Weights out(at(num_experts), kElse);
  for (std::size_t e : experts) out[e] = 1;
  return out;
}

Weights of_share(int rank, const RoutedTokens& t) {
  std::vector<std::size_t> experts;
  for (std::int64_t e = 0; e < t.num_experts; ++e) {
    if (e * t.world_size / t.num_experts == rank) experts.push_back(at(e));
  }
  return of_some(experts, t.num_experts);
}

Weights zipf(double exponent, std::int64_t num_experts, std::mt19937_64& random) {
  Weights out(at(num_experts));
  std::vector<std::size_t> order = order_by_lot(num_experts, random);
  for (std::size_t i = 0; i < order.size(); ++i) {
    out[order[i]] = std::pow(static_cast<double>(i + 1), -exponent);
  }
  return out;
}

std::vector<Weights> weights_of_ranks(const Routing& routing, const RoutedTokens& t,
                                      std::mt19937_64& random) {
  auto same = [&](Weights w) { return std::vector<Weights>(at(t.world_size), std::move(w)); };
  auto first_by_lot = [&](std::int64_t count) {
    std::vector<std::size_t> order = order_by_lot(t.num_experts, random);
    order.resize(at(std::clamp(count, t.top_k, t.num_experts)));
    return of_some(order, t.num_experts);
  };
  switch (routing.kind) {
    case RoutingKind::kUniform:
      return same(Weights(at(t.num_experts), 1));
    case RoutingKind::kZipf:
      return same(zipf(routing.exponent, t.num_experts, random));
    case RoutingKind::kZipfOfRank: {
      std::vector<Weights> out;
      for (int r = 0; r < t.world_size; ++r) {
        out.push_back(zipf(routing.exponent, t.num_experts, random));
      }
      return out;
    }
    case RoutingKind::kEmpty:
      return same(first_by_lot(std::lround(routing.used * static_cast<double>(t.num_experts))));
    case RoutingKind::kOneExpert: {
      Weights w(at(t.num_experts), 1);
      w[random() % w.size()] = kAlways;
      return same(std::move(w));
    }
    case RoutingKind::kSame:
      return same(first_by_lot(t.top_k));
    case RoutingKind::kAtHome: {
      std::vector<Weights> out;
      for (int r = 0; r < t.world_size; ++r) out.push_back(of_share(r, t));
      return out;
    }
    case RoutingKind::kOneSided:
      return same(of_share(static_cast<int>(random() % at(t.world_size)), t));
  }
  return {};
}

}  // namespace

const char* name(RoutingKind kind) { return kNames[static_cast<std::size_t>(kind)]; }

std::string Routing::to_string() const {
  const bool is_zipf = kind == RoutingKind::kZipf || kind == RoutingKind::kZipfOfRank;
  if (is_zipf) return fmt::format("{} {:.2f}", name(kind), exponent);
  if (kind == RoutingKind::kEmpty) return fmt::format("{} {:.2f}", name(kind), 1 - used);
  return name(kind);
}

std::vector<Routing> drawn_routings(std::uint64_t seed, int count) {
  std::mt19937_64 random(seed);
  std::uniform_real_distribution<double> exponent(0.5, 2), used(0.1, 0.5);
  std::vector<Routing> out;
  std::vector<std::size_t> kinds;
  for (int i = 0; i < count; ++i) {
    if (kinds.empty()) kinds = order_by_lot(kNumRoutingKinds, random);
    Routing r{.kind = static_cast<RoutingKind>(kinds.back())};
    kinds.pop_back();
    r.exponent = exponent(random);
    r.used = used(random);
    r.seed = random();
    out.push_back(r);
  }
  return out;
}

// The top_k of the highest log(weight) + Gumbel noise are draws without replacement by weight
// (Kool, van Hoof, Welling: Stochastic Beams and Where to Find Them, section 2).
std::vector<std::int32_t> experts_of(const Routing& routing, const RoutedTokens& tokens) {
  std::mt19937_64 random(routing.seed);
  std::vector<Weights> weights = weights_of_ranks(routing, tokens, random);
  for (Weights& w : weights) {
    for (double& x : w) x = std::log(x);
  }
  std::uniform_real_distribution<double> uniform(0x1p-53, 1);
  std::vector<std::int32_t> out;
  std::vector<std::pair<double, std::int32_t>> keys(at(tokens.num_experts));
  for (std::int64_t token = 0; token < tokens.m; ++token) {
    const Weights& w = weights[at(token * tokens.world_size / tokens.m)];
    for (std::size_t e = 0; e < keys.size(); ++e) {
      keys[e] = {-w[e] + std::log(-std::log(uniform(random))), static_cast<std::int32_t>(e)};
    }
    auto end = keys.begin() + tokens.top_k;
    std::partial_sort(keys.begin(), end, keys.end());
    for (auto it = keys.begin(); it != end; ++it) out.push_back(it->second);
  }
  return out;
}

}  // namespace stretto::bench
