// What the tests of generated kernels share.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "stretto/codegen/kernel.h"
#include "stretto/passes/pipeline.h"
#include "stretto/runtime/cuda/nvrtc.h"

namespace stretto {

inline GeneratedKernel generate(const Program& program) {
  return generate_kernel(run_pipeline(program));
}

// The lines stand in the text in this order; blanks do not count.
inline void expect_lines(const std::string& text, const std::vector<std::string>& lines) {
  std::size_t at = 0;
  for (const std::string& line : lines) {
    std::size_t found = text.find(line, at);
    EXPECT_NE(found, std::string::npos) << "missing, or out of order: " << line << "\n" << text;
    if (found == std::string::npos) return;
    at = found + line.size();
  }
}

// No spills, no stack, no warning of the assembler.
inline void expect_clean_build(const GeneratedKernel& kernel) {
  if (!cuda::has_nvrtc()) return;
  cuda::KernelImage image = cuda::compile_cuda(kernel.expanded, "sample.cu", {.use_cache = false});
  std::vector<cuda::KernelReport> reports = cuda::kernel_reports(image.log);
  ASSERT_EQ(reports.size(), 1u) << image.log;
  EXPECT_EQ(reports[0].kernel, kernel.launch.kernel);
  EXPECT_EQ(reports[0].spill_store_bytes + reports[0].spill_load_bytes, 0) << kernel.source;
  EXPECT_EQ(reports[0].stack_bytes, 0) << kernel.source;
  EXPECT_TRUE(reports[0].warnings.empty()) << reports[0].warnings[0];
  EXPECT_LE(reports[0].registers * kernel.launch.block, 65536);
}

}  // namespace stretto
