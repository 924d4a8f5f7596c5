// What a user would lose: the config of a layer of experts that is predicted to be the fastest, or
// the tables that were made for it.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "stretto/ir/printer.h"
#include "stretto/ops/choose/choose.h"
#include "stretto/ops/choose/choose_testing.h"
#include "stretto/ops/choose/fastest.h"

namespace stretto {
namespace {

using ExpertChoiceTest = ChooseTest;

// What the kernels read and write: the tables that others have made among it.
std::vector<std::string> given_tensors(const Program& program) {
  std::vector<std::string> out;
  for (const Tensor& t : program.tensors) {
    if (t.kind == TensorKind::kBuffer) continue;
    std::string text = t.name + " " + short_name(t.dtype);
    for (const Expr& dim : t.shape) text += " " + print_expr(program, dim);
    out.push_back(text);
  }
  return out;
}

TEST_F(ExpertChoiceTest, LayersOfExpertsAreChosenForTheTablesThatTheyHave) {
  MoeLayerDesc d{.shape = {.world_size = 4, .m = 2048, .top_k = 4, .num_experts = 60},
                 .hidden = 2048,
                 .ffn = 352,
                 .dtype = DType::kBF16};
  predict::Machine four = predict::find_machine("h200x4");
  MoeLayerConfig base = default_config(d, Target::kCuda);
  base.second.block_tiles = 1;  // narrow blocks, which others beat
  Program usual = moe_layer(d, base), chosen = fastest_program(d, base, four);
  EXPECT_EQ(given_tensors(chosen), given_tensors(usual));
  EXPECT_NE(print(chosen), print(usual)) << "another shape would tell more";
  EXPECT_EQ(print(fastest_program(d, base, four)), print(chosen));
  // Of tiles of other rows there is only what is given.
  base.first.loop.tile.bm = base.second.loop.tile.bm = 64;
  EXPECT_EQ(print(fastest_program(d, base, four)), print(moe_layer(d, base)));
}

// On four H200s sums of Qwen2-MoE's second layer take 0.139 ms of 4096 tokens at the end, 0.184
// beside products, which were predicted to take 0.157 and the end 0.187; of an all-reduce of 2048
// tokens 0.109 and 0.141 (2026-11-27, docs/performance/moe.md).
TEST_F(ExpertChoiceTest, SumsOfShortProductsComeAtTheEnd) {
  predict::Machine four = predict::find_machine("h200x4");
  for (auto [m, all_reduce] :
       {std::pair{2048, false}, {4096, false}, {8192, false}, {2048, true}}) {
    GroupedRsDesc d{.shape = {.world_size = 4, .m = m, .top_k = 4, .num_experts = 60},
                    .n = 2048,
                    .k = 352,
                    .a_dtype = DType::kBF16,
                    .b_dtype = DType::kBF16,
                    .out_dtype = DType::kBF16,
                    .all_reduce = all_reduce};
    GroupedRsConfig base = default_config(d, Target::kCuda);
    ASSERT_GT(base.last_blocks, 0);
    EXPECT_EQ(print(fastest_program(d, base, four)), print(grouped_gemm_rs(d, base))) << m;
  }
}

// Tokens that threads pick for the tensor core, one by one, cost it a tenth of its time: copied
// into the order of the tiles before, those of Mixtral's first layer took 1.589 ms on four H200s
// where they took 1.692 otherwise, of 8192 (2026-11-27). Predicted were 1.545 and 1.461.
TEST_F(ExpertChoiceTest, TokensInTheOrderOfTheTilesAreMultipliedFaster) {
  predict::Machine four = predict::find_machine("h200x4");
  AgGroupedDesc d{.shape = {.world_size = 4, .m = 8192, .top_k = 2, .num_experts = 8},
                  .n = 3584,
                  .k = 4096,
                  .a_dtype = DType::kBF16,
                  .b_dtype = DType::kBF16,
                  .c_dtype = DType::kBF16,
                  .swiglu = true,
                  .gathers = true};
  AgGroupedConfig sorted = default_config(d, Target::kCuda), picked = sorted;
  ASSERT_GT(sorted.sort_rows, 0);
  picked.sort_rows = picked.sort_cols = 0;
  auto predicted_ms = [&](const AgGroupedConfig& config) {
    OpCandidates one;
    add_configs(one, d, std::vector{config}, ag_grouped_gemm);
    return rank_candidates(one, four).front().predicted_ms;
  };
  EXPECT_NEAR(predicted_ms(sorted), 1.589, 0.1);
  EXPECT_NEAR(predicted_ms(picked), 1.692, 0.1);
}

}  // namespace
}  // namespace stretto
