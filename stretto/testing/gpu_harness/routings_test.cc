// Kernels of a mixture of experts with every routing, on GPUs or simulated ones: one instance has
// launches whose tokens go elsewhere each time. If these fail, experts that get no tokens, or all
// of them, are wrong on GPUs only.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <vector>

#include "stretto/base/test_seed.h"
#include "stretto/ops/moe/ag_grouped_gemm.h"
#include "stretto/ops/moe/combine.h"
#include "stretto/ops/moe/ep_moe_layer.h"
#include "stretto/ops/moe/ep_place.h"
#include "stretto/ops/moe/ep_return.h"
#include "stretto/ops/moe/ep_send.h"
#include "stretto/ops/moe/expert_tables.h"
#include "stretto/ops/moe/grouped_gemm.h"
#include "stretto/ops/moe/grouped_gemm_rs.h"
#include "stretto/ops/moe/moe_layer.h"
#include "stretto/ops/moe/route.h"
#include "stretto/runtime/cuda/driver.h"
#include "stretto/testing/cases/routing_case.h"
#include "stretto/testing/gpu_harness/gpu_case.h"

namespace stretto {
namespace {

std::vector<OperatorInfo> operators() {
  return {moe_route_info(),
          expert_tables_info(),
          grouped_gemm_info(),
          grouped_swiglu_info(),
          grouped_gemm_masked_info(),
          moe_combine_info(),
          ag_grouped_gemm_info(),
          grouped_gemm_rs_info(),
          grouped_gemm_ar_info(),
          moe_layer_info(),
          ep_moe_layer_info(),
          ep_send_info(),
          ep_place_info(),
          ep_return_info()};
}

class GpuRoutings : public testing::TestWithParam<std::size_t> {};

TEST_P(GpuRoutings, GiveWhatTheReferenceSays) {
  constexpr int kRanks = 2;
  if (!cuda::has_driver() || cuda::num_devices() < kRanks) GTEST_SKIP() << "needs two GPUs";
  const OperatorInfo op = operators()[GetParam()];
  const std::uint64_t seed = test_seed() % 100'000;
  OpShape shape = op.shapes(kRanks).front();
  for (const OpShape& s : op.shapes(kRanks)) {
    if (s.dtype == DType::kBF16 && s.m < 64) shape = s;
  }
  shape.target = Target::kCuda;
  GpuWorld world({.size = kRanks});
  GpuRunResult result =
      run_gpu_cases(world, cases_of_routings(op, shape, seed), {.launches = 2, .seed = seed});
  EXPECT_EQ(result.found, "");
}

INSTANTIATE_TEST_SUITE_P(OfOperators, GpuRoutings,
                         testing::Range(std::size_t{0}, operators().size()),
                         [](const auto& info) { return operators()[info.param].name; });

}  // namespace
}  // namespace stretto
