// What a user would lose: the config of a layer of experts that is predicted to be the fastest, or
// the tables that were made for it.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "stretto/ir/printer.h"
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
  MoeLayerDesc d{.world_size = 4,
                 .m = 2048,
                 .top_k = 4,
                 .num_experts = 60,
                 .hidden = 2048,
                 .ffn = 352,
                 .dtype = DType::kBF16};
  predict::Machine four = predict::find_machine("h200x4");
  MoeLayerConfig base = default_config(d, Target::kCuda);
  Program usual = moe_layer(d, base), chosen = fastest_program(d, base, four);
  EXPECT_EQ(given_tensors(chosen), given_tensors(usual));
  EXPECT_NE(print(chosen), print(usual)) << "another shape would tell more";
  EXPECT_EQ(print(fastest_program(d, base, four)), print(chosen));
  // Of tiles of other rows there is only what is given.
  base.first.tile.bm = base.second.tile.bm = 64;
  EXPECT_EQ(print(fastest_program(d, base, four)), print(moe_layer(d, base)));
}

// On four H200s sums of Qwen2-MoE's second layer take 0.139 ms of 4096 tokens at the end, 0.184
// beside products, which were predicted to take 0.157 and the end 0.187; of an all-reduce of 2048
// tokens 0.109 and 0.141 (2026-11-27, docs/performance/moe.md).
TEST_F(ExpertChoiceTest, SumsOfShortProductsComeAtTheEnd) {
  predict::Machine four = predict::find_machine("h200x4");
  for (auto [m, all_reduce] :
       {std::pair{2048, false}, {4096, false}, {8192, false}, {2048, true}}) {
    GroupedRsDesc d{.world_size = 4,
                    .m = m,
                    .top_k = 4,
                    .num_experts = 60,
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

}  // namespace
}  // namespace stretto
