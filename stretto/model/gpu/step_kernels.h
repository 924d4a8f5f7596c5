// The kernels of a step plan, made on all processors.
#pragma once

#include <vector>

#include "stretto/base/progress.h"
#include "stretto/compiler.h"
#include "stretto/gpu/gpu_code.h"
#include "stretto/step/plan.h"

namespace stretto {

struct StepKernel {
  Proved program;
  GpuCode code;
};

// Lowers, proves and compiles the programs of `plan` in their order. Rejected and errors of the
// compiler as compiler.h and gpu_code.h; the first program's that has one. `progress` hears how
// many are done.
std::vector<StepKernel> build_step_kernels(const step::Plan& plan, const ProveOptions& options,
                                           Progress* progress = nullptr);

}  // namespace stretto
