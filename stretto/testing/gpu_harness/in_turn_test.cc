// Products whose warpgroups take tiles in turn, on a GPU or a simulated one, beside the fp64
// reference: a user who loses this multiplies slots of another tile, or waits for ever.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <vector>

#include "stretto/base/test_seed.h"
#include "stretto/testing/cases/ag_gemm_case.h"
#include "stretto/testing/cases/gemm_case.h"
#include "stretto/testing/gpu_harness/gpu_case.h"
#include "stretto/testing/harness/run_case.h"

namespace stretto {
namespace {

constexpr GemmTile kTile{.bm = 128, .bn = 160, .bk = 64};

GemmTile tile_of_width(int bn) { return {.bm = 128, .bn = bn, .bk = 64}; }

GemmDesc desc(std::int64_t m, std::int64_t n, std::int64_t k) {
  return {.m = m,
          .n = n,
          .k = k,
          .a_dtype = DType::kBF16,
          .b_dtype = DType::kBF16,
          .c_dtype = DType::kBF16};
}

AgGemmDesc gathered(std::int64_t m, std::int64_t n, std::int64_t k) {
  const GemmDesc product = desc(m, n, k);
  return {.world_size = 2,
          .m = m,
          .n = n,
          .k = k,
          .a_dtype = product.a_dtype,
          .b_dtype = product.b_dtype,
          .c_dtype = product.c_dtype};
}

// Fewer steps than slots, and numbers of tiles that leave a consumer, or workers, without the last.
TEST(InTurn, GemmIsRight) {
  if (!cuda::has_driver() || cuda::num_devices() == 0) GTEST_SKIP() << "no GPU";
  std::uint64_t seed = test_seed();
  GpuWorld world({.size = 1});
  struct Shape {
    std::int64_t m, n, k;
    int bn, sms, stages;
  };
  const std::vector<Shape> all = {{700, 330, 712, 160, 3, 5}, {512, 640, 128, 160, 2, 4},
                                  {200, 160, 64, 160, 4, 3},  {1000, 500, 330, 160, 5, 5},
                                  {500, 520, 200, 176, 3, 5}, {500, 504, 200, 168, 3, 5},
                                  {300, 310, 328, 152, 2, 5}, {400, 290, 136, 144, 2, 4}};
  for (const Shape& s : drawn_of("in turn", all, 8)) {
    GemmDesc d = desc(s.m, s.n, s.k);
    GemmConfig config{.loop = {.tile = tile_of_width(s.bn),
                               .num_compute_sms = s.sms,
                               .raster = 4,
                               .num_stages = s.stages,
                               .num_consumers = 2}};
    for (std::int64_t m : {s.m, std::int64_t{1}, s.m - 130}) {
      OpCase c = gemm_case(d, config, m, seed);
      EXPECT_EQ(run_gpu_case(world, c, {.seed = seed}), "")
          << c.config << "\nSTRETTO_TEST_SEED=" << seed;
    }
  }
}

TEST(InTurn, ClustersAndBiasesAreRight) {
  if (!cuda::has_driver() || cuda::num_devices() == 0) GTEST_SKIP() << "no GPU";
  std::uint64_t seed = test_seed();
  GpuWorld world({.size = 1});
  GemmDesc d = desc(700, 360, 456);
  GemmConfig config{.loop = {.tile = {.bm = 256, .bn = 128, .bk = 64},
                             .num_compute_sms = 2,
                             .raster = 4,
                             .num_stages = 4,
                             .num_consumers = 2,
                             .cluster_size = 2}};
  OpCase pairs = gemm_case(d, config, d.m, seed);
  EXPECT_EQ(run_gpu_case(world, pairs, {.seed = seed}), "") << "STRETTO_TEST_SEED=" << seed;
  d.bias = true;
  config.loop.tile = kTile;
  config.loop.cluster_size = 1;
  OpCase bias = gemm_case(d, config, d.m, seed);
  EXPECT_EQ(run_gpu_case(world, bias, {.seed = seed}), "") << "STRETTO_TEST_SEED=" << seed;
}

TEST(InTurn, BytesWithScalesOfRowsAreRight) {
  if (!cuda::has_driver() || cuda::num_devices() == 0) GTEST_SKIP() << "no GPU";
  std::uint64_t seed = test_seed();
  GpuWorld world({.size = 1});
  GemmDesc d = desc(500, 520, 656);
  d.a_dtype = d.b_dtype = DType::kF8E4M3;
  d.scaling = Scaling::kRowWise;
  for (int bn : drawn_of("bytes in turn", std::vector{168, 160}, 2)) {
    GemmConfig config{.loop = {.tile = {.bm = 128, .bn = bn, .bk = 128},
                               .num_compute_sms = 3,
                               .raster = 4,
                               .num_stages = 5,
                               .num_consumers = 2}};
    for (std::int64_t m : {500, 130, 1}) {
      OpCase c = gemm_case(d, config, m, seed);
      EXPECT_EQ(run_gpu_case(world, c, {.seed = seed}), "")
          << c.config << "\nSTRETTO_TEST_SEED=" << seed;
    }
  }
}

TEST(InTurn, AgGemmIsRightWithAnyNumberOfRows) {
  if (!cuda::has_driver() || cuda::num_devices() < 2) GTEST_SKIP() << "no two GPUs";
  std::uint64_t seed = test_seed();
  GpuWorld world({.size = 2});
  AgGemmDesc d = gathered(1000, 700, 648);
  AgGemmConfig config = default_config(d, Target::kCuda, Gather::kSend);
  config.loop.tile = kTile;
  config.loop.num_compute_sms = 7;
  config.loop.num_stages = 5;
  config.loop.num_consumers = 2;
  config.loop.raster = 4;
  config.loop.stagger = config.loop.store_slots = 0;
  config = fitted(d, config);
  for (std::int64_t m : drawn_of("gathered in turn", std::vector{1000, 997, 300, 1, 0}, 5)) {
    OpCase c = ag_gemm_case(d, config, m, seed);
    EXPECT_EQ(run_gpu_case(world, c, {.seed = seed}), "")
        << c.config << "\nSTRETTO_TEST_SEED=" << seed;
  }
}

// Of 52 x 64 tiles of 160 columns the busiest of 132 SMs has 26, of 49 x 64 of 168 columns 24.
TEST(InTurn, WidthKeepsSmsBusyUntilTheEnd) {
  auto width = [](std::int64_t m, std::int64_t n) {
    return default_config(desc(m, n, 4096), Target::kCuda).loop.tile.bn;
  };
  EXPECT_EQ(width(8192, 8192), 168);
  EXPECT_EQ(width(8192, 28672), 168);
  EXPECT_EQ(width(8192, 14336), 176);
  EXPECT_EQ(width(1024, 14336), 176);
  AgGemmDesc d = gathered(8192, 11008, 4096);
  EXPECT_EQ(default_config(d, Target::kCuda, Gather::kSend).loop.tile.bn, 168);
  d.b_kn = true;
  EXPECT_EQ(default_config(d, Target::kCuda, Gather::kSend).loop.tile.bn, 160);
}

// A loop long enough takes them by default.
TEST(InTurn, IsTheDefaultOfManyTiles) {
  EXPECT_EQ(default_config(desc(8192, 14336, 4096), Target::kCuda).loop.num_consumers, 2);
  EXPECT_EQ(default_config(desc(1024, 4096, 4096), Target::kCuda).loop.num_consumers, 1);
  AgGemmDesc d = gathered(8192, 14336, 4096);
  EXPECT_EQ(default_config(d, Target::kCuda, Gather::kSend).loop.num_consumers, 2);
  d.n = 1024;
  EXPECT_EQ(default_config(d, Target::kCuda, Gather::kSend).loop.num_consumers, 1);
}

}  // namespace
}  // namespace stretto
