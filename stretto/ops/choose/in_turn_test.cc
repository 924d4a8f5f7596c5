// Products whose warpgroups take tiles in turn, among the configs that the chooser ranks.
#include <gtest/gtest.h>

#include "stretto/ops/choose/configs.h"

namespace stretto {
namespace {

// What was measured to be fastest is not left for pairs of blocks, which are predicted to be.
TEST(ChooseInTurn, StaysTheChoiceOfManyTiles) {
  for (std::int64_t m : {4096, 8192}) {
    GemmDesc d{.m = m, .n = 14336, .k = 4096};
    d.a_dtype = d.b_dtype = d.c_dtype = DType::kBF16;
    std::vector<GemmConfig> configs = gpu_configs(d, {});
    EXPECT_EQ(configs.front().loop.num_consumers, 2);
    for (const GemmConfig& c : configs) EXPECT_EQ(c.loop.cluster_size, 1) << to_string(c);
  }
}

}  // namespace
}  // namespace stretto
