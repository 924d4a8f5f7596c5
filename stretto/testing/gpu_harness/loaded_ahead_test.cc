// GEMM+RS and GEMM+AR as they are by default with many rows, on two GPUs or simulated ones, beside
// the fp64 reference: engines scatter the parts, who loads the factors brings what arrived, and an
// agent stores. A user who loses this adds parts that are not there yet, or another tile's.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <vector>

#include "stretto/base/test_seed.h"
#include "stretto/testing/cases/gemm_ar_case.h"
#include "stretto/testing/cases/gemm_rs_case.h"
#include "stretto/testing/gpu_harness/gpu_case.h"
#include "stretto/testing/harness/run_case.h"

namespace stretto {
namespace {

constexpr std::int64_t kRows = 600, kCols = 520, kInner = 200;
const std::vector<std::int64_t> kNumbersOfRows = {kRows, kRows - 3, 1, 0};

TEST(LoadedAhead, GemmRsIsRightWithAnyNumberOfRows) {
  if (!cuda::has_driver() || cuda::num_devices() < 2) GTEST_SKIP() << "no two GPUs";
  std::uint64_t seed = test_seed();
  GpuWorld world({.size = 2});
  for (bool residual : {false, true}) {
    GemmRsDesc d{.world_size = 2, .m = 8192, .n = 8192, .k = 4096};
    d.a_dtype = d.b_dtype = d.out_dtype = DType::kBF16;
    d.residual = d.average = residual;
    GemmRsConfig config = default_config(d, Target::kCuda);
    ASSERT_GT(config.loop.load_slots, 0) << to_string(config);
    d.m = kRows, d.n = kCols, d.k = kInner;
    config.loop.num_compute_sms = 4;
    config = fitted(d, config);
    for (std::int64_t m : drawn_of(fmt::format("scattered {}", residual), kNumbersOfRows, 4)) {
      OpCase c = gemm_rs_case(d, config, m, seed);
      EXPECT_EQ(run_gpu_case(world, c, {.seed = seed}), "")
          << c.config << "\nSTRETTO_TEST_SEED=" << seed;
    }
  }
}

TEST(LoadedAhead, GemmArIsRightWithAnyNumberOfRows) {
  if (!cuda::has_driver() || cuda::num_devices() < 2) GTEST_SKIP() << "no two GPUs";
  std::uint64_t seed = test_seed();
  GpuWorld world({.size = 2});
  for (Scatter gather : {Scatter::kEpilogue, Scatter::kCopyEngine}) {
    GemmArDesc d{.world_size = 2, .m = 8192, .n = 8192, .k = 4096};
    d.a_dtype = d.b_dtype = d.out_dtype = DType::kBF16;
    d.residual = gather == Scatter::kEpilogue;
    GemmArConfig config = default_config(d, Target::kCuda);
    ASSERT_GT(config.loop.load_slots, 0) << to_string(config);
    ASSERT_EQ(config.gather, Scatter::kEpilogue) << to_string(config);
    d.m = kRows, d.n = kCols, d.k = kInner;
    config.loop.num_compute_sms = 4;
    config.gather = gather;
    config = fitted(d, config);
    for (std::int64_t m : drawn_of(fmt::format("summed {}", d.residual), kNumbersOfRows, 4)) {
      OpCase c = gemm_ar_case(d, config, m, seed);
      EXPECT_EQ(run_gpu_case(world, c, {.seed = seed}), "")
          << c.config << "\nSTRETTO_TEST_SEED=" << seed;
    }
  }
}

}  // namespace
}  // namespace stretto
