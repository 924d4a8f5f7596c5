// Kernels compiled on all processors at once, which needs no GPU: what runs later finds them in the
// cache, and a bad one is known before a device is held.
#pragma once

#include <string>
#include <vector>

#include "stretto/codegen/kernel.h"
#include "stretto/compiler.h"
#include "stretto/ir/program.h"
#include "stretto/predict/launch_tables.h"
#include "stretto/runtime/cuda/nvrtc.h"

namespace stretto::bench {

struct LabelledProgram {
  std::string label;
  Program program;  // tile level
  KernelOptions options = {};
  predict::LaunchTables tables = {};  // that it is predicted for
  ProveOptions launches = {};         // that it is proved for, where it is
};

struct CompiledKernel {
  std::string label;
  std::string error;  // empty where it compiled
  double seconds = 0;
  std::vector<cuda::KernelReport> reports;

  // Spills, local memory or a warning of the assembler: it runs, but not as it was meant to.
  bool is_clean() const;
  std::string to_string() const;  // one line
};

// In the order of `programs`. Nothing is thrown for one that does not compile or, with `proof`, is
// not proved.
std::vector<CompiledKernel> compile_ahead(const std::vector<LabelledProgram>& programs,
                                          bool proof = false);

}  // namespace stretto::bench
