// If these fail, fused layers of experts are judged by other routings than their results say.
#include "bench/gpu/experts/routings.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "bench/gpu/experts/moe_shapes.h"
#include "stretto/base/at.h"
#include "stretto/base/test_seed.h"

namespace stretto::bench {
namespace {

constexpr RoutedTokens kTokens{.m = 4096, .world_size = 4, .num_experts = 60, .top_k = 4};

// How often each expert is chosen by the tokens of each rank.
std::vector<std::vector<std::int64_t>> counts(const Routing& routing, const RoutedTokens& t) {
  const std::vector<std::int32_t> experts = experts_of(routing, t);
  EXPECT_EQ(experts.size(), at(t.m * t.top_k));
  std::vector<std::vector<std::int64_t>> out(at(t.world_size),
                                             std::vector<std::int64_t>(at(t.num_experts)));
  for (std::int64_t token = 0; token < t.m; ++token) {
    std::set<std::int32_t> of_token;
    for (std::int64_t j = 0; j < t.top_k; ++j) {
      const std::int32_t e = experts[at(token * t.top_k + j)];
      EXPECT_TRUE(0 <= e && e < t.num_experts);
      of_token.insert(e);
      ++out[at(token / (t.m / t.world_size))][at(e)];
    }
    EXPECT_EQ(of_token.size(), at(t.top_k)) << "token " << token;
  }
  return out;
}

std::vector<std::int64_t> sum(const std::vector<std::vector<std::int64_t>>& of_ranks) {
  std::vector<std::int64_t> out(of_ranks[0].size());
  for (const auto& counted : of_ranks) {
    for (std::size_t e = 0; e < out.size(); ++e) out[e] += counted[e];
  }
  return out;
}

std::int64_t num_used(const std::vector<std::int64_t>& counted) {
  return std::ranges::count_if(counted, [](std::int64_t n) { return n > 0; });
}

class RoutingsTest : public ::testing::Test {
 protected:
  std::uint64_t seed_ = test_seed();
  ::testing::ScopedTrace trace_{__FILE__, __LINE__, "STRETTO_TEST_SEED=" + std::to_string(seed_)};

  std::vector<std::vector<std::int64_t>> of(RoutingKind kind, const RoutedTokens& t = kTokens) {
    return counts({.kind = kind, .exponent = 1.5, .used = 0.25, .seed = seed_}, t);
  }
};

TEST_F(RoutingsTest, EvenOnesAreEven) {
  // 4096 * 4 / 60 = 273 pairs of an expert, with a standard deviation of 16.
  for (std::int64_t n : sum(of(RoutingKind::kUniform)))
    EXPECT_NEAR(static_cast<double>(n), 273, 110);
}

TEST_F(RoutingsTest, SkewedOnesAreSkewed) {
  auto skewed = [](std::vector<std::int64_t> counted) {
    std::ranges::sort(counted, std::greater());
    // The weights' first is 2.8 times the second; of four that a token has it is nearly always one.
    EXPECT_GT(counted[0], 3 * counted[7]);
    EXPECT_GT(counted[0], 30 * std::max<std::int64_t>(counted[50], 1));
  };
  skewed(sum(of(RoutingKind::kZipf)));
  const auto of_ranks = of(RoutingKind::kZipfOfRank);
  std::set<std::size_t> firsts;
  for (const auto& counted : of_ranks) {
    EXPECT_GT(std::ranges::max(counted), 700);  // of 1024 tokens
    firsts.insert(at(std::ranges::max_element(counted) - counted.begin()));
    skewed(counted);
  }
  EXPECT_GT(firsts.size(), 1U) << "each rank has an order of its own";
}

TEST_F(RoutingsTest, SomeGetNothing) {
  EXPECT_EQ(num_used(sum(of(RoutingKind::kEmpty))), 15);
  EXPECT_EQ(num_used(sum(of(RoutingKind::kSame))), kTokens.top_k);
  const auto one = sum(of(RoutingKind::kOneExpert));
  EXPECT_EQ(std::ranges::count(one, kTokens.m), 1);
  EXPECT_GT(num_used(one), 50);
}

TEST_F(RoutingsTest, OneSidedOnesStayInAShare) {
  const auto home = of(RoutingKind::kAtHome);
  for (std::size_t r = 0; r < home.size(); ++r) {
    for (std::size_t e = 0; e < home[r].size(); ++e) EXPECT_EQ(home[r][e] > 0, e / 15 == r);
  }
  const auto side = sum(of(RoutingKind::kOneSided));
  EXPECT_EQ(num_used(side), 15);
  const auto first = std::ranges::find_if(side, [](std::int64_t n) { return n > 0; });
  EXPECT_EQ((first - side.begin()) % 15, 0);
  // Shares of one expert, of tokens with two: the other is any.
  const RoutedTokens few{.m = 4096, .world_size = 8, .num_experts = 8, .top_k = 2};
  const auto at_home = of(RoutingKind::kAtHome, few);
  for (std::size_t r = 0; r < at_home.size(); ++r) EXPECT_EQ(at_home[r][r], 512);
  EXPECT_EQ(num_used(sum(at_home)), 8);
}

TEST_F(RoutingsTest, ADrawHasEveryKindTwiceAndEveryListedPair) {
  for (int ranks : {2, 4}) {
    const auto shapes = routed_shapes(ranks, seed_, false);
    ASSERT_EQ(shapes.size(), 32U);
    std::map<RoutingKind, int> kinds;
    std::set<std::string> pairs;
    for (std::size_t i = 0; i < shapes.size(); i += 2) {
      EXPECT_EQ(shapes[i].layer, 1);
      EXPECT_EQ(shapes[i + 1].layer, 2);
      EXPECT_EQ(chosen_experts(shapes[i], 1), chosen_experts(shapes[i + 1], 2));
      MoeShape shape = shapes[i];
      ++kinds[shape.routing->kind];
      shape.routing.reset();
      pairs.insert(shape.to_string());
    }
    EXPECT_EQ(kinds.size(), at(kNumRoutingKinds));
    for (auto [kind, count] : kinds) EXPECT_EQ(count, 2) << name(kind);
    EXPECT_EQ(pairs.size(), 12U);
  }
}

TEST_F(RoutingsTest, ASeedDrawsTheSameAgain) {
  auto texts = [](std::uint64_t seed) {
    std::string out;
    for (const MoeShape& s : routed_shapes(2, seed, false)) {
      out += s.to_string() + " " + std::to_string(s.routing->seed) + "\n";
    }
    return out;
  };
  EXPECT_EQ(texts(seed_), texts(seed_));
  EXPECT_NE(texts(seed_), texts(seed_ + 1));
}

}  // namespace
}  // namespace stretto::bench
