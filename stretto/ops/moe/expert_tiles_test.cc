// In which order tiles of experts come. A user who loses this gets layers that wait for other
// ranks' tokens while their own could be multiplied, or read weights more often than they need to.
#include "stretto/ops/moe/expert_tiles.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "stretto/base/test_seed.h"
#include "stretto/ops/moe/ag_grouped_gemm.h"
#include "stretto/testing/cases/routing_case.h"

namespace stretto {
namespace {

// In classes the weights of an expert are read once for each: of as many experts as it takes to
// have something to do while tokens travel, and of none where weights take the time.
TEST(ExpertTileOrder, ClassesAreOfAsManyExpertsAsTokensTravel) {
  ExpertTiles tiles{.shape = {.world_size = 2, .m = 8192, .top_k = 2, .num_experts = 32},
                    .tile_rows = 128};
  EXPECT_EQ(default_order(tiles, Target::kCuda, {.ffn = 4096}).stages, 2);
  std::int64_t wide = default_order(tiles, Target::kCuda, {.ffn = 4096}).early_experts;
  EXPECT_EQ(wide, 7);
  EXPECT_GT(default_order(tiles, Target::kCuda, {.ffn = 1024}).early_experts,
            wide);  // sooner multiplied
  EXPECT_EQ(default_order(tiles, Target::kCuda, {.ffn = 64}).early_experts,
            ExpertTileOrder{}.early_experts);
  EXPECT_LT(default_order(tiles, Target::kCuda).early_experts, 32);
  // Of more ranks the tokens come one rank's after another, each in the time of a class.
  tiles.shape.world_size = 4, tiles.shape.m = 16384;
  EXPECT_EQ(default_order(tiles, Target::kCuda, {.ffn = 4096}).early_experts, wide);
  tiles.shape.world_size = 1;
  EXPECT_EQ(default_order(tiles, Target::kCuda, {.ffn = 4096}).stages, 1);
  // One expert would keep a rank busy for as long, but not all its SMs.
  tiles = {.shape = {.world_size = 2, .m = 2048, .top_k = 2, .num_experts = 8}, .tile_rows = 128};
  EXPECT_EQ(default_order(tiles, Target::kCuda, {.ffn = 7168}).early_experts, 4);
  tiles = {.shape = {.world_size = 4, .m = 64, .top_k = 2, .num_experts = 32}, .tile_rows = 64};
  EXPECT_EQ(default_order(tiles, Target::kCuda, {.ffn = 4096}).stages, 1);
}

// Where an expert has few rows of a rank's tokens, its weights take longer than their products in
// every class: on four GPUs those of 128 experts were, by all four, a tenth of the predicted time.
TEST(ExpertTileOrder, ClassesAreOfFewExpertsWhereReadingWeightsAgainTakesLongerThanMultiplying) {
  struct Layer {
    std::int64_t experts, top_k, ffn, m, low, high;  // ffn: of a rank; in classes
  };
  auto expect = [](int ranks, const Layer& l) {
    SCOPED_TRACE(fmt::format("{} experts, {} tokens, {} ranks", l.experts, l.m, ranks));
    ExpertTiles tiles{
        .shape = {.world_size = ranks, .m = l.m, .top_k = l.top_k, .num_experts = l.experts},
        .tile_rows = 128};
    ExpertTileOrder order = default_order(tiles, Target::kCuda, {.ffn = l.ffn});
    EXPECT_EQ(order.stages, ranks);
    EXPECT_GE(std::min(order.early_experts, l.experts), l.low);
    EXPECT_LE(std::min(order.early_experts, l.experts), l.high);
  };
  for (const Layer& l : {Layer{128, 8, 384, 4096, 8, 32}, Layer{128, 8, 384, 8192, 8, 48},
                         Layer{32, 2, 2048, 4096, 1, 6}, Layer{32, 2, 2048, 8192, 3, 8},
                         Layer{16, 2, 1600, 2048, 1, 4}, Layer{8, 2, 3584, 2048, 1, 4}}) {
    expect(4, l);
  }
  // Many rows: as long as tokens travel. All 32 experts in classes took 5.0 ms with 16,384 tokens
  // of four H100s, 8 of them 3.3.
  for (const Layer& l : {Layer{128, 8, 384, 16384, 60, 80}, Layer{16, 2, 1600, 8192, 8, 10},
                         Layer{60, 4, 352, 16384, 60, 60}, Layer{8, 2, 3584, 8192, 4, 4},
                         Layer{32, 2, 2048, 16384, 12, 16}}) {
    expect(4, l);
  }
  for (const Layer& l : {Layer{32, 2, 4096, 4096, 5, 8}, Layer{32, 2, 4096, 16384, 7, 7},
                         Layer{128, 8, 768, 8192, 30, 40}, Layer{128, 8, 768, 4096, 24, 40},
                         // Few tiles of the own rows alone.
                         Layer{16, 2, 3200, 2048, 7, 9}}) {
    expect(2, l);
  }
}

// Workers that share weights then begin together and stay in step.
TEST(ExpertTileOrder, TilesOfAClassWaitForTheSameRanks) {
  ExpertTiles tiles{.shape = {.world_size = 4, .m = 64, .top_k = 2, .num_experts = 3},
                    .tile_rows = 4};
  std::vector<std::int32_t> chosen =
      chosen_experts(routed_tokens(tiles, 64), Routing::kRandom, test_seed());
  for (const ExpertTileOrder& order :
       {ExpertTileOrder{}, {.stages = 4}, {.stages = 2}, {4, 1}, {2, 2}}) {
    SCOPED_TRACE(to_string(order));
    for (int rank = 0; rank < 4; ++rank) {
      TileTables t = tile_tables(tiles, rank, 64, chosen, order);
      std::set<std::int32_t> needed;
      for (int tile = 0; tile < t.used; ++tile) {
        auto i = static_cast<std::size_t>(tile);
        needed.insert(t.needs[i]);
        EXPECT_GE(t.needs[i], tile > 0 ? t.needs[i - 1] : 1);
        EXPECT_GE(t.needs[i], t.experts[i] >= order.early_experts ? 4 : 1);
        for (std::size_t row = i * 4; row < i * 4 + 4; ++row) {
          EXPECT_LT(t.tokens[row], 16 * t.needs[i]);  // 16 tokens of each rank, the own first
        }
      }
      EXPECT_LE(needed.size(), static_cast<std::size_t>(order.stages));
      EXPECT_EQ(needed.count(4), 1u);
      ExpertTileOrder apart = order;
      apart.in_step = false;
      TileTables by_itself = tile_tables(tiles, rank, 64, chosen, apart);
      EXPECT_EQ(by_itself.tokens, t.tokens);
      for (int tile = 0; tile < t.used; ++tile) {
        auto i = static_cast<std::size_t>(tile);
        auto last = std::max_element(t.tokens.begin() + tile * 4, t.tokens.begin() + tile * 4 + 4);
        EXPECT_EQ(by_itself.needs[i], *last / 16 + 1);
      }
    }
  }
}

// Tokens that workers push come together: no class would be done before the others.
TEST(ExpertTileOrder, FewTokensArePushedAndHaveOneClass) {
  ExpertTiles tiles{.shape = {.world_size = 4, .m = 2048, .top_k = 4, .num_experts = 60},
                    .tile_rows = 128};
  EXPECT_TRUE(are_pushed(tiles, 4096));
  EXPECT_FALSE(are_pushed(tiles, 4104));
  EXPECT_EQ(default_order(tiles, Target::kCuda, {.ffn = 352, .hidden = 2048}).stages, 1);
  EXPECT_EQ(default_order(tiles, Target::kCuda, {.ffn = 352, .hidden = 8192}).stages, 4);
  EXPECT_EQ(default_order(tiles, Target::kCuda, {.ffn = 352}).stages, 4) << "not known";
  AgGroupedDesc d{.shape = {.world_size = 4, .m = 2048, .num_experts = 60}, .n = 352, .k = 2048};
  for (std::int64_t m : {2048, 65536}) {
    d.shape.m = tiles.shape.m = m;
    EXPECT_EQ(default_config(d, Target::kCuda).num_copy_queues == 0, are_pushed(tiles, d.k)) << m;
    EXPECT_GT(default_config(d, Target::kCpu).num_copy_queues, 0);
  }
}

// Their tokens are sent before anything is multiplied.
TEST(ExpertTileOrder, GroupsOfExpertsHaveOneClass) {
  ExpertTiles tiles{.shape = {.world_size = 4, .m = 16384, .top_k = 2, .num_experts = 32},
                    .tile_rows = 128};
  tiles.expert_groups = 4;
  EXPECT_EQ(default_order(tiles, Target::kCuda, {.ffn = 2048}).stages, 1);
  EXPECT_EQ(order_in_classes(tiles, {}, {.ffn = 2048}).stages,
            4);  // what may be faster is still there
  EXPECT_EQ(default_order(tiles, Target::kCpu, {.ffn = 2048}).stages, 4);
}

}  // namespace
}  // namespace stretto
