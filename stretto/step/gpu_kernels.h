// The kernels of a step plan, made on all processors. Comes before gpu_runner.h.
#pragma once

#include <functional>
#include <set>
#include <string>
#include <vector>

#include "stretto/base/progress.h"
#include "stretto/compiler.h"
#include "stretto/gpu/gpu_code.h"
#include "stretto/step/plan.h"

namespace stretto::step {

struct Kernel {
  Proved program;
  GpuCode code;
};

// Lowers, proves and compiles one; `constants` as KernelOptions.
Kernel build_kernel(Program program, std::set<std::string> constants, const ProveOptions& options,
                    const std::function<void()>& proved = {});

// Lowers, proves and compiles the programs of `plan` in their order, each for what `proofs` says of
// it. Rejected and errors of the compiler as compiler.h and gpu_code.h; the first program's that
// has one. `progress` hears how many are done.
std::vector<Kernel> build_kernels(const Plan& plan, const std::vector<ProveOptions>& proofs,
                                  Progress* progress = nullptr);

}  // namespace stretto::step
