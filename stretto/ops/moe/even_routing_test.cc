// Predictions are of tables that a launch would have: what the operators themselves make of the
// same experts. If these fail, `stretto predict` compares launches that do different work.
#include "stretto/ops/moe/even_routing.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "stretto/compiler.h"
#include "stretto/ops/moe/ep_place.h"
#include "stretto/ops/moe/ep_send.h"
#include "stretto/predict/prediction.h"
#include "stretto/testing/cases/moe_case.h"
#include "stretto/testing/harness/run_case.h"

namespace stretto {
namespace {

using predict::TableValues;

Values as_values(const std::vector<std::int32_t>& from) { return {from.begin(), from.end()}; }

// Two ranks of each group have the same experts.
EpDesc exchange(int ranks, std::int64_t m, int groups) {
  return {.shape = {.world_size = ranks, .m = m, .top_k = 3, .num_experts = 7},
          .dtype = DType::kF32,
          .hidden = 4,
          .expert_groups = groups};
}

constexpr struct {
  int ranks;
  std::int64_t m;
  int groups;
} kExchanges[] = {{1, 9, 1}, {2, 8, 2}, {3, 10, 3}, {4, 13, 2}, {4, 1, 4}};

TEST(EvenRouting, TokensGoWhereSendingThemBringsThem) {
  for (const auto& e : kExchanges) {
    EpDesc d = exchange(e.ranks, e.m, e.groups);
    for (std::int64_t m : {d.shape.m, d.shape.m / 2}) {
      SCOPED_TRACE(to_string(d));
      std::vector<TableValues> tables = even_routing(d)({m});
      MoeCase mc(ep_send(d, default_send_config(d)), d.shape.m, 0, m);
      mc.c.unchecked = {"recv", "recv_weights"};  // the tables alone
      for (std::size_t r = 0; r < tables.size(); ++r) {
        auto set = [&](const char* name, Values values) {  // of the rows that there are
          Values& expected = mc.out(r, name);
          values.resize(expected.size(), kUnchecked);
          expected = values;
        };
        Values& experts = mc.in(r, "experts");
        Values own = as_values(tables[r].at("experts"));
        std::copy(own.begin(), own.end(), experts.begin());
        for (const char* name : {"recv", "recv_weights"}) {
          std::fill(mc.out(r, name).begin(), mc.out(r, name).end(), kUnchecked);
        }
        // Experts of tokens that go elsewhere are told, too, and not looked at.
        Values told = as_values(tables[r].at("recv_experts"));
        ExpertSplit split = split_of(d);
        auto rank = static_cast<int>(r);
        for (std::size_t t = 0; t < told.size(); t += at(d.shape.top_k)) {
          auto here = [&](double x) {
            return split.first(rank) <= static_cast<std::int64_t>(x) &&
                   static_cast<std::int64_t>(x) < split.end(rank);
          };
          auto first = told.begin() + static_cast<std::ptrdiff_t>(t);
          if (std::none_of(first, first + d.shape.top_k, here))
            std::fill_n(first, d.shape.top_k, kUnchecked);
        }
        set("recv_experts", told);
        set("positions", as_values(tables[r].at("positions")));
      }
      EXPECT_EQ(run_case(mc.c, {.launches = 1}), "");
    }
  }
}

TEST(EvenRouting, RowsLieWherePlacingPutsThem) {
  for (const auto& e : kExchanges) {
    EpDesc d = exchange(e.ranks, e.m, e.groups);
    SCOPED_TRACE(to_string(d));
    std::vector<TableValues> tables = even_routing(d)({d.shape.m});
    MoeCase mc(ep_place(d, default_place_config(d)), d.shape.m, 0);
    mc.c.extents.clear();
    for (std::size_t r = 0; r < tables.size(); ++r) {
      mc.in(r, "recv_experts") = as_values(tables[r].at("recv_experts"));
      for (const char* name : {"slots", "offsets", "tokens"}) {
        mc.out(r, name) = as_values(tables[r].at(name));
      }
    }
    EXPECT_EQ(run_case(mc.c, {.launches = 1}), "");
  }
}

// As many rows as tokens have experts, shared out over all of them.
TEST(EvenRouting, AllExpertsHaveRows) {
  constexpr std::int64_t kTokens = 4096, kExperts = 16;
  GroupedDesc d{.m = kTokens, .rows_per_token = 2, .num_experts = kExperts};
  std::vector<std::int32_t> offsets = even_routing(d)({kTokens}).at(0).at("offsets");
  ASSERT_EQ(std::ssize(offsets), kExperts + 1);
  EXPECT_EQ(offsets.back(), 2 * kTokens);
  std::int64_t mean = 2 * kTokens / kExperts;
  for (std::int64_t e = 0; e < kExperts; ++e) {
    EXPECT_NEAR(offsets[at(e + 1)] - offsets[at(e)], mean, mean / 4);
  }
}

// Half as many tokens as the program has room for: half of the tiles, not all of them.
TEST(EvenRouting, TilesWithoutTokensAreNotPredicted) {
  EpMoeLayerDesc d{.shape = {.world_size = 2, .m = 4096, .top_k = 2, .num_experts = 8},
                   .expert_groups = 2,
                   .hidden = 1024,
                   .ffn = 4096,
                   .dtype = DType::kBF16};
  EpMoeLayerConfig c = default_config(d, Target::kCuda);
  Lowered compiled = lower(ep_moe_layer(d, c));
  predict::Machine machine = predict::find_machine("h200x2");
  auto tensor_ms = [&](std::int64_t m, const predict::LaunchTables& tables) {
    return predict::predict(compiled, machine, {.timetable = {.extents = {m}, .tables = tables}})
        .floors.tensor_ms;
  };
  double even = tensor_ms(d.shape.m, even_routing(d, c));
  EXPECT_NEAR(tensor_ms(d.shape.m / 2, even_routing(d, c)) / even, 0.5, 0.1);
  EXPECT_NEAR(tensor_ms(d.shape.m, {}) / even, 2, 0.2) << "all tokens at every rank";
}

}  // namespace
}  // namespace stretto
