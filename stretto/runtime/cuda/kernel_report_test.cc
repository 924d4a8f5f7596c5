// Reading the assembler's report: a spill or a serialised wgmma that is overlooked ships as a
// kernel several times slower than its neighbours.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "stretto/runtime/cuda/nvrtc.h"

namespace stretto::cuda {
namespace {

// As NVRTC 13.0 writes it.
constexpr const char* kLog =
    R"(gemm.cu(3): warning #177-D: variable "u" was declared but never referenced

)"
    "ptxas info    : (C7508) Potential Performance Loss: 'setmaxnreg' ignored; unable"
    " to determine register count at entry.\n"
    "ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions"
    " are serialized due to insufficient register resources for the wgmma pipeline in"
    " the function 'wgmma_gemm'\n"
    "ptxas warning : Registers are spilled to local memory in function 'spills', 3412"
    " bytes spill stores, 3884 bytes spill loads\n"
    R"(ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'wgmma_gemm' for 'sm_90a'
ptxas info    : Function properties for wgmma_gemm
ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 168 registers, used 3 barriers, 1024 bytes smem
ptxas info    : Compile time = 19.407 ms
ptxas info    : Compiling entry function 'spills' for 'sm_90a'
ptxas info    : Function properties for spills
ptxas         .     2696 bytes stack frame, 3412 bytes spill stores, 3884 bytes spill loads
ptxas info    : Function properties for helper
ptxas         .     64 bytes stack frame, 8 bytes spill stores, 4 bytes spill loads
ptxas info    : Used 32 registers, used 1 barriers, 2760 bytes cumulative stack size
ptxas info    : Compile time = 1976.706 ms
)";

TEST(KernelReports, EveryFigureOfEveryKernel) {
  std::vector<KernelReport> reports = kernel_reports(kLog);
  ASSERT_EQ(reports.size(), 2u);
  EXPECT_EQ(reports[0].kernel, "wgmma_gemm");
  EXPECT_EQ(reports[0].registers, 168);
  EXPECT_EQ(reports[0].static_shared, 1024);
  EXPECT_EQ(reports[0].stack_bytes, 0);
  EXPECT_EQ(reports[0].spill_store_bytes, 0);
  EXPECT_EQ(reports[1].kernel, "spills");
  EXPECT_EQ(reports[1].registers, 32);
  EXPECT_EQ(reports[1].static_shared, 0);
  EXPECT_EQ(reports[1].stack_bytes, 2760) << "with the functions that it calls";
  EXPECT_EQ(reports[1].spill_store_bytes, 3420);
  EXPECT_EQ(reports[1].spill_load_bytes, 3888);
}

TEST(KernelReports, WarningsReachTheKernelTheyName) {
  std::vector<KernelReport> reports = kernel_reports(kLog);
  ASSERT_EQ(reports.size(), 2u);
  ASSERT_EQ(reports[0].warnings.size(), 2u) << "the one without a function is everybody's";
  EXPECT_NE(reports[0].warnings[0].find("setmaxnreg"), std::string::npos);
  EXPECT_NE(reports[0].warnings[1].find("serialized"), std::string::npos);
  ASSERT_EQ(reports[1].warnings.size(), 2u);
  EXPECT_NE(reports[1].warnings[1].find("Registers are spilled"), std::string::npos);
}

TEST(KernelReports, NothingFromAnEmptyLog) { EXPECT_TRUE(kernel_reports("").empty()); }

// As instructions: one that arrives, matrix instructions, and waits for them.
TEST(KernelReports, MoreWaitsForProductsThanTheTextHas) {
  const auto instruction = [](std::uint64_t word) {
    std::string out(16, '\0');
    std::memcpy(out.data(), &word, sizeof word);
    return out;
  };
  const std::string arrive = instruction(0x79c5), product = instruction(0x01e00000241879f0),
                    wait = instruction(0x000080000000'79c5);
  const std::string source = "wgmma_wait<1>(); wgmma_wait<0>();";
  std::string kept = arrive, serialized;
  for (int i = 0; i < 8; ++i) kept += product;
  kept += wait + wait;
  for (int i = 0; i < 8; ++i) serialized += arrive + product + wait;
  EXPECT_EQ(serialized_products(kept, source), "");
  EXPECT_EQ(serialized_products(serialized, "no products"), "");
  std::string line = serialized_products(serialized, source);
  EXPECT_NE(line.find("8 waits for matrix products, of 2 in the text"), std::string::npos) << line;
  std::vector<KernelReport> reports = kernel_reports(kLog + line);
  ASSERT_EQ(reports.size(), 2u);
  for (const KernelReport& r : reports) EXPECT_EQ(r.warnings.size(), 3u) << r.kernel;
}

}  // namespace
}  // namespace stretto::cuda
