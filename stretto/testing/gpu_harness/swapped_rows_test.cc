// GEMM+AR with the weights as the left factor, whose sums are turned before they travel, on a GPU
// or a simulated one: a user who loses this has sums of other rows and columns.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "stretto/base/test_seed.h"
#include "stretto/testing/cases/gemm_ar_case.h"
#include "stretto/testing/gpu_harness/gpu_case.h"

namespace stretto {
namespace {

struct Way {
  ReduceShots shots = ReduceShots::kOne;
  bool packets = false;
  int split_k = 1;
};

GemmArConfig config_of(const Way& way, const GemmTile& tile) {
  return {.loop = {.tile = tile, .num_compute_sms = 5, .num_stages = 3},
          .shots = way.shots,
          .num_reduce_sms = 0,
          .packets = way.packets,
          .swap_ab = true,
          .split_k = way.split_k};
}

class SwappedRows : public testing::TestWithParam<int> {};

// Tiles whose sums are turned at once and in two pieces, of rows and columns that do not fill them,
// weights in both orders.
TEST_P(SwappedRows, OfEveryWay) {
  const int ranks = GetParam();
  if (!cuda::has_driver() || cuda::num_devices() < ranks) {
    GTEST_SKIP() << "needs " << ranks << " GPUs";
  }
  const std::uint64_t seed = test_seed();
  const std::vector<Way> ways = {{},
                                 {.split_k = 2},
                                 {.shots = ReduceShots::kShared},
                                 {.shots = ReduceShots::kShared, .packets = true}};
  GpuWorld world({.size = ranks});
  for (const Way& way : ways) {
    for (bool wide : {false, true}) {
      const GemmTile tile =
          wide ? GemmTile{.bm = 144, .bn = 128, .bk = 64} : GemmTile{.bm = 72, .bn = 64, .bk = 64};
      GemmArDesc d{.world_size = ranks, .m = tile.bm - 5, .n = 200, .k = 200};
      d.a_dtype = d.b_dtype = d.out_dtype = wide ? DType::kBF16 : DType::kF16;
      d.residual = wide, d.b_kn = wide;
      const GemmArConfig config = fitted(d, config_of(way, tile));
      ASSERT_TRUE(config.swap_ab && config.shots == way.shots && config.split_k == way.split_k);
      for (std::int64_t m : {d.m / 2, d.m}) {
        EXPECT_EQ(run_gpu_case(world, gemm_ar_case(d, config, m, seed)), "")
            << to_string(d) << " | " << to_string(config) << ", m=" << m
            << ", STRETTO_TEST_SEED=" << seed;
      }
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Gpus, SwappedRows, testing::Values(2, 4));

}  // namespace
}  // namespace stretto
