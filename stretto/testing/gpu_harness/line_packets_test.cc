// Packets in lines that products store from their fragments, with some rows of the tiles, on a GPU
// or a simulated one: a user who loses this has sums with another row's parts in them.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "stretto/base/test_seed.h"
#include "stretto/codegen/kernel.h"
#include "stretto/passes/pipeline.h"
#include "stretto/testing/cases/gemm_ar_case.h"
#include "stretto/testing/gpu_harness/gpu_case.h"

namespace stretto {
namespace {

TEST(LinePackets, SharesOfTilesOfSomeRows) {
  const std::uint64_t seed = test_seed();
  for (int ranks : {2, 4}) {
    GemmArDesc d{.world_size = ranks,
                 .m = 128,
                 .n = 128,
                 .k = 64,
                 .a_dtype = DType::kBF16,
                 .b_dtype = DType::kBF16,
                 .out_dtype = DType::kBF16};
    GemmArConfig config = default_config(d, ReduceShots::kShared, Target::kCuda);
    std::string kernel = generate_kernel(run_pipeline(gemm_ar(d, config))).source;
    ASSERT_NE(kernel.find("Lines<bf16>"), std::string::npos) << to_string(config);
    if (!cuda::has_driver() || cuda::num_devices() < ranks) continue;
    GpuWorld world({.size = ranks});
    for (std::int64_t m : {0, 1, 50, 77, 128}) {
      EXPECT_EQ(run_gpu_case(world, gemm_ar_case(d, config, m, seed)), "")
          << ranks << " ranks, m=" << m << ", STRETTO_TEST_SEED=" << seed;
    }
  }
}

}  // namespace
}  // namespace stretto
