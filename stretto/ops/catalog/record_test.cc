// The catalog's kernels with timestamps in them fit the registers that they have without. A user
// who loses this sees timelines of kernels that spill, or none.
#include <gtest/gtest.h>

#include "stretto/gpu/gpu_code.h"
#include "stretto/ops/catalog/catalog.h"
#include "stretto/runtime/cuda/nvrtc.h"

namespace stretto {
namespace {

class RecordingKernels : public ::testing::TestWithParam<const char*> {};

TEST_P(RecordingKernels, CompileWithoutSpills) {
  if (!cuda::has_nvrtc()) GTEST_SKIP() << "no NVRTC";
  const OperatorInfo* op = find_operator(GetParam());
  ASSERT_NE(op, nullptr);
  OpShape shape;
  shape.dtype = DType::kBF16;
  shape.world_size = 2;
  shape.target = Target::kCuda;
  Lowered compiled = lower(op->program(shape));
  GpuCode code = generate(compiled, {.record = true});
  EXPECT_FALSE(code.kernel.launch.event_lanes.empty());
  for (const cuda::KernelReport& report : cuda::kernel_reports(code.image.log)) {
    EXPECT_EQ(report.spill_store_bytes + report.spill_load_bytes, 0) << report.kernel;
    EXPECT_EQ(report.stack_bytes, 0) << report.kernel;
    EXPECT_TRUE(report.warnings.empty()) << report.warnings.front();
  }
}

INSTANTIATE_TEST_SUITE_P(Catalog, RecordingKernels,
                         testing::Values("gemm", "ag_gemm", "gemm_rs", "gemm_ar", "all_gather",
                                         "all_reduce_two_shot", "all_reduce_packet", "attention"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace stretto
