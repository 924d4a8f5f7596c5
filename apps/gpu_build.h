// A program's kernel, generated and compiled without a GPU, and what the assembler said about it.
#pragma once

#include <string>

#include "stretto/codegen/kernel.h"
#include "stretto/ir/program.h"

namespace stretto {

struct GpuBuild {
  int spills = 0;    // bytes of spill stores and loads, all threads alike
  int warnings = 0;  // of the assembler: a wgmma serialised, a register budget ignored
  double seconds = 0;
  std::string complaint;  // empty: a clean build
};

// Through the passes, where `program` is at tile level, to the kernel's text.
GeneratedKernel generate_for_gpu(Program program);
// UserError for what has no lowering; InternalError with the compiler's messages for text that does
// not compile; DeviceError where there is no compiler.
GpuBuild build_for_gpu(Program program, const std::string& arch);

}  // namespace stretto
