// Every operator of a mixture of experts with every routing: tiles, lists and ranks that have
// nothing, everything, or one row more or less than fits. If these fail, a layer is right until a
// prompt comes whose tokens all want the same expert.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <tuple>

#include "stretto/base/test_seed.h"
#include "stretto/ops/moe/ag_grouped_gemm.h"
#include "stretto/ops/moe/combine.h"
#include "stretto/ops/moe/ep_moe_layer.h"
#include "stretto/ops/moe/ep_place.h"
#include "stretto/ops/moe/ep_return.h"
#include "stretto/ops/moe/ep_send.h"
#include "stretto/ops/moe/expert_tables.h"
#include "stretto/ops/moe/grouped_gemm.h"
#include "stretto/ops/moe/grouped_gemm_rs.h"
#include "stretto/ops/moe/moe_layer.h"
#include "stretto/ops/moe/route.h"
#include "stretto/testing/cases/routing_case.h"
#include "stretto/testing/harness/run_case.h"

namespace stretto {
namespace {

using Rows = std::vector<std::int64_t>;

// Of each expert.
Rows rows_of(const RoutedTokens& of, const std::vector<std::int32_t>& chosen) {
  Rows rows(static_cast<std::size_t>(of.split.num_experts), 0);
  for (std::int32_t e : chosen) ++rows.at(static_cast<std::size_t>(e));
  return rows;
}

TEST(Routing, EachComesOnceAmongConsecutiveSeedsAndWithSizesOfEveryRemainder) {
  std::set<std::tuple<Routing, std::uint64_t>> with_remainder;
  for (std::uint64_t first = 0; first < 18 * kNumRoutings; first += kNumRoutings) {
    std::set<Routing> all;
    for (std::uint64_t seed = first; seed < first + kNumRoutings; ++seed) {
      all.insert(routing_of(seed));
      with_remainder.insert({routing_of(seed), seed % 6});
    }
    EXPECT_EQ(all.size(), kNumRoutings);
  }
  EXPECT_EQ(with_remainder.size(), 6 * kNumRoutings);
  EXPECT_EQ(routing_of(0), Routing::kRandom);
}

TEST(Routing, RowsOfExpertsAreThoseThatItsNameSays) {
  const std::uint64_t seed = test_seed();
  SCOPED_TRACE(fmt::format("STRETTO_TEST_SEED={}", seed));
  const RoutedTokens of{.tokens = 40, .top_k = 2, .split = {7, 4, 4}, .tile_rows = 8};
  auto rows = [&](Routing routing) { return rows_of(of, chosen_experts(of, routing, seed)); };
  auto count = [](const Rows& all, std::int64_t n) {
    return std::count(all.begin(), all.end(), n);
  };
  for (std::uint64_t i = 0; i < kNumRoutings; ++i) {
    EXPECT_EQ(chosen_experts(of, static_cast<Routing>(i), seed).size(), 80u);
  }
  EXPECT_EQ(rows(Routing::kEven), (Rows{12, 12, 12, 11, 11, 11, 11}));
  EXPECT_EQ(rows(Routing::kLastExpert), (Rows{0, 0, 0, 0, 0, 0, 80}));
  EXPECT_EQ(rows(Routing::kTileRows), (Rows{8, 7, 9, 8, 7, 9, 32}));
  EXPECT_EQ(count(rows(Routing::kOneExpert), 80), 1);
  EXPECT_EQ(count(rows(Routing::kOnePerExpert), 1), 6);
  EXPECT_EQ(count(rows(Routing::kOnePerExpert), 74), 1);
}

// Two experts on each of three ranks, one on the last.
TEST(Routing, TokensGoToTheRankThatItsNameSays) {
  const std::uint64_t seed = test_seed();
  SCOPED_TRACE(fmt::format("STRETTO_TEST_SEED={}", seed));
  RoutedTokens of{.tokens = 40, .top_k = 2, .split = {7, 4, 4}, .tile_rows = 3, .exchanged = true};
  auto rank_of = [&](std::int32_t expert) { return expert / 2; };
  std::vector<std::int32_t> one = chosen_experts(of, Routing::kOneRank, seed);
  for (std::int32_t e : one) EXPECT_EQ(rank_of(e), rank_of(one.front()));
  std::vector<std::int32_t> next = chosen_experts(of, Routing::kNextRank, seed);
  std::map<std::pair<std::size_t, int>, std::int64_t> sent;
  std::vector<std::int32_t> tiles = chosen_experts(of, Routing::kTileRows, seed);
  for (std::size_t pair = 0; pair < next.size(); ++pair) {
    std::size_t from = pair / 20;
    EXPECT_EQ(rank_of(next[pair]), static_cast<int>((from + 1) % 4)) << pair;
    EXPECT_EQ(rank_of(tiles[pair]), rank_of(tiles[pair / 2 * 2])) << pair;
    ++sent[{from, rank_of(tiles[pair])}];  // twice for each token
  }
  EXPECT_EQ((sent[{0, 0}]), 2 * 3);
  EXPECT_EQ((sent[{0, 1}]), 2 * 2);
  EXPECT_EQ((sent[{0, 2}]), 2 * 4);
  EXPECT_EQ((sent[{0, 3}]), 2 * 1);
  EXPECT_EQ((sent[{1, 0}]), 2 * 2);
  // The last rank has no expert: the next one that has some.
  of.split = {6, 4, 4};
  next = chosen_experts(of, Routing::kNextRank, seed);
  for (std::size_t pair = 40; pair < 60; ++pair) EXPECT_EQ(rank_of(next[pair]), 0) << pair;
}

TEST(Routing, DifferentExpertsAreDifferent) {
  const std::uint64_t seed = test_seed();
  SCOPED_TRACE(fmt::format("STRETTO_TEST_SEED={}", seed));
  const RoutedTokens of{.tokens = 12, .top_k = 3, .split = {4, 2, 2}};
  for (std::uint64_t i = 0; i < kNumRoutings; ++i) {
    std::vector<std::int32_t> chosen = different_experts(of, static_cast<Routing>(i), seed);
    for (std::size_t pair = 0; pair < chosen.size(); pair += 3) {
      std::set<std::int32_t> own{chosen[pair], chosen[pair + 1], chosen[pair + 2]};
      EXPECT_EQ(own.size(), 3u) << name_of(static_cast<Routing>(i));
      EXPECT_LT(*own.rbegin(), 4);
    }
  }
}

const std::vector<OperatorInfo>& operators() {
  static const std::vector<OperatorInfo> kAll{
      moe_route_info(),       moe_route_limited_info(), expert_tables_info(),
      grouped_gemm_info(),    grouped_swiglu_info(),    grouped_gemm_masked_info(),
      moe_combine_info(),     ag_grouped_gemm_info(),   grouped_gemm_rs_info(),
      grouped_gemm_ar_info(), moe_layer_info(),         ep_moe_layer_info(),
      ep_send_info(),         ep_send_fp8_info(),       ep_place_info(),
      ep_return_info()};
  return kAll;
}

class EveryRouting : public testing::TestWithParam<std::tuple<std::size_t, int>> {};

// One launch after the other of one instance, which has to forget where the last tokens went.
void expect_every_routing(const OperatorInfo& op, const OpShape& shape) {
  const std::uint64_t seed = test_seed() % 100'000;
  EXPECT_EQ(run_cases(cases_of_routings(op, shape, seed), {.launches = 1, .seed = seed}), "");
}

TEST_P(EveryRouting, GivesWhatTheReferenceSays) {
  auto [index, ranks] = GetParam();
  const OperatorInfo& op = operators()[index];
  for (const OpShape& shape : op.shapes(ranks)) {
    if (shape.m < 64) expect_every_routing(op, shape);
  }
}

// With the tiles of GPUs, of which the long shapes fill some.
TEST_P(EveryRouting, GivesTheSameWithItsGpuConfig) {
  auto [index, ranks] = GetParam();
  const OperatorInfo& op = operators()[index];
  std::vector<OpShape> shapes = op.shapes(ranks);
  OpShape longest = *std::max_element(shapes.begin(), shapes.end(),
                                      [](const auto& a, const auto& b) { return a.m < b.m; });
  longest.target = Target::kCuda;
  expect_every_routing(op, longest);
}

INSTANTIATE_TEST_SUITE_P(AllOperators, EveryRouting,
                         testing::Combine(testing::Range(std::size_t{0}, operators().size()),
                                          testing::Range(1, 5)),
                         [](const auto& info) {
                           return fmt::format("{}_P{}", operators()[std::get<0>(info.param)].name,
                                              std::get<1>(info.param));
                         });

}  // namespace
}  // namespace stretto
