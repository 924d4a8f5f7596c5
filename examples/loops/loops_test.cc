// What a user would lose: programs of their own that are as good as the operators. Each loop, those
// held out among them, is proved, runs right, is predicted and compiles to code without spills.
#include "examples/loops/loops.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <random>

#include "stretto/base/test_seed.h"
#include "stretto/codegen/kernel.h"
#include "stretto/compiler.h"
#include "stretto/passes/pipeline.h"
#include "stretto/predict/prediction.h"
#include "stretto/runtime/cuda/nvrtc.h"
#include "stretto/testing/harness/run_case.h"

namespace stretto::loops {
namespace {

constexpr int kWorkers = 3;  // so that each has several tiles
constexpr int kSms = 132;

class LoopsTest : public testing::TestWithParam<Loop> {};

TEST_P(LoopsTest, IsProvedAndRunsRightOnRaggedRows) {
  const Loop& loop = GetParam();
  std::uint64_t seed = test_seed();
  for (std::int64_t rows : {loop.small.m - 5, std::int64_t{1}}) {
    OpCase c = loop.make_case(loop.program(loop.small, kWorkers), loop.small, rows, seed);
    EXPECT_EQ(run_case(c, {.seed = seed, .waiver = {}}), "")
        << rows << " rows\nSTRETTO_TEST_SEED=" << seed;
  }
}

TEST_P(LoopsTest, IsPredictedNoFasterThanItsRoofline) {
  const Loop& loop = GetParam();
  Lowered schedule = lower(loop.program(loop.large, kSms));
  predict::Prediction got = predict::predict(schedule, predict::find_machine("h200x1"));
  EXPECT_GE(got.time_ms, loop.flops / 900e12 * 1e3);
  EXPECT_GE(got.time_ms, got.floors.hbm_ms);
  EXPECT_LT(got.time_ms, 20);
  RecordProperty("predicted_ms", std::to_string(got.time_ms));
  std::printf("%-20s predicted %.3f ms, bound by %s\n", loop.name, got.time_ms,
              got.bound_by.c_str());
}

TEST_P(LoopsTest, CompilesWithoutSpills) {
  const Loop& loop = GetParam();
  GeneratedKernel kernel = generate_kernel(run_pipeline(loop.program(loop.large, kSms)));
  if (!cuda::has_nvrtc()) GTEST_SKIP() << "no NVRTC";
  cuda::KernelImage image = cuda::compile_cuda(kernel.expanded, "loop.cu", {.use_cache = false});
  std::vector<cuda::KernelReport> reports = cuda::kernel_reports(image.log);
  ASSERT_EQ(reports.size(), 1u) << image.log;
  EXPECT_EQ(reports[0].spill_store_bytes + reports[0].spill_load_bytes, 0);
  EXPECT_EQ(reports[0].stack_bytes, 0);
  EXPECT_TRUE(reports[0].warnings.empty()) << reports[0].warnings[0];
  EXPECT_LE(reports[0].registers * kernel.launch.block, 65536);
}

std::string test_name(const testing::TestParamInfo<Loop>& loop) {
  std::string name = loop.param.name;
  for (char& c : name) c = std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '_';
  return name;
}

INSTANTIATE_TEST_SUITE_P(All, LoopsTest, testing::ValuesIn(all_loops()), test_name);
INSTANTIATE_TEST_SUITE_P(HeldOut, LoopsTest, testing::ValuesIn(held_out_loops()), test_name);

}  // namespace
}  // namespace stretto::loops
