// The kernels of a step plan, made on all processors.
#pragma once

#include <functional>
#include <set>
#include <string>
#include <vector>

#include "stretto/base/progress.h"
#include "stretto/compiler.h"
#include "stretto/gpu/gpu_code.h"
#include "stretto/model/transformer/batch_plan.h"
#include "stretto/step/plan.h"

namespace stretto {

struct StepKernel {
  Proved program;
  GpuCode code;
};

// What the programs of a step's plan (batch_plan.h) are proved for, in their order: launches of
// steps with each number of rows that `bounds` counts.
std::vector<ProveOptions> step_proofs(const ModelShape& shape, const step::Plan& plan,
                                      const BatchBounds& bounds, const GpuTarget& gpu = {});

// Lowers, proves and compiles one; `constants` as KernelOptions.
StepKernel build_step_kernel(Program program, std::set<std::string> constants,
                             const ProveOptions& options, const std::function<void()>& proved = {});

// Lowers, proves and compiles the programs of `plan` in their order, each for what `proofs` says of
// it. Rejected and errors of the compiler as compiler.h and gpu_code.h; the first program's that
// has one. `progress` hears how many are done.
std::vector<StepKernel> build_step_kernels(const step::Plan& plan,
                                           const std::vector<ProveOptions>& proofs,
                                           Progress* progress = nullptr);

}  // namespace stretto
