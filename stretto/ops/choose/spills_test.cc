// Which configs of GEMM+RS, GEMM+AR and AG+GEMM the chooser leaves out.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "stretto/ops/choose/configs.h"

namespace stretto {
namespace {

// What keeps registers in local memory (stretto compile OP --candidates) is not worth a prediction.
TEST(Configs, ThatSpillAreNotOffered) {
  auto two_shot = [](int ranks) {
    GemmArDesc d{.world_size = ranks, .m = 8192, .n = 8192, .k = 4096};
    d.a_dtype = d.b_dtype = d.out_dtype = DType::kBF16;
    return gpu_configs(d, ReduceShots::kTwo, {});
  };
  auto count = [](const std::vector<GemmArConfig>& configs, auto&& which) {
    return std::count_if(configs.begin(), configs.end(), which);
  };
  auto sums_wide = [](const GemmArConfig& c) {
    return c.num_reduce_sms > 0 && c.loop.tile.bn > 128;
  };
  auto wide = [](const GemmArConfig& c) {
    return c.loop.tile.bn >= 192 && c.loop.tile.bn != 224 && c.loop.store_slots == 0 &&
           c.scatter == Scatter::kEpilogue;
  };
  auto middle = [](const GemmArConfig& c) {
    return c.loop.tile.bn == 192 && c.loop.store_slots == 0 && c.scatter == Scatter::kCopyEngine;
  };
  EXPECT_EQ(count(two_shot(2), sums_wide), 0);
  EXPECT_EQ(count(two_shot(4), sums_wide), 0);
  EXPECT_GT(count(two_shot(2), middle), 0);
  EXPECT_EQ(count(two_shot(4), middle), 0);
  EXPECT_GT(count(two_shot(2), wide), 0);
  EXPECT_EQ(count(two_shot(4), wide), 0);

  auto widest = [](int ranks) {
    GemmRsDesc d{.world_size = ranks, .m = 8192, .n = 8192, .k = 4096};
    d.a_dtype = d.b_dtype = d.out_dtype = DType::kBF16;
    std::int64_t most = 0;
    for (const GemmRsConfig& c : gpu_configs(d, Scatter::kCopyEngine, {})) {
      most = std::max(most, c.loop.tile.bn);
    }
    return most;
  };
  EXPECT_EQ(widest(4), 256);
  EXPECT_EQ(widest(3), 224) << "whose rows are whose is no mask";

  AgGemmDesc gathered{.world_size = 2, .m = 8192, .n = 4096, .k = 8192, .gathered = true};
  EXPECT_TRUE(gpu_configs(gathered, Gather::kPush, {}).empty());
  EXPECT_FALSE(gpu_configs(gathered, Gather::kSend, {}).empty());
}

}  // namespace
}  // namespace stretto
