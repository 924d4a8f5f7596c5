// Makes the kernel that GPUs load from a lowered program: it is generated, then NVRTC compiles it,
// or it is found in the cache. This needs no GPU.
//
// Before: compiler.h lowered the program. After: load() of launch/executable.h takes it with the
// proved program.
#pragma once

#include <memory>

#include "stretto/codegen/kernel.h"
#include "stretto/compiler.h"
#include "stretto/runtime/cuda/nvrtc.h"

namespace stretto {

// A program's compiled kernel. It depends on no GPU; several threads may make some at once.
struct GpuCode {
  std::shared_ptr<const Program> program;  // that it is made from
  GeneratedKernel kernel;
  cuda::KernelImage image;
};
// Makes the kernel for options.target. UserError for a program that has no GPU lowering;
// InternalError where the generated kernel does not compile cleanly.
GpuCode generate(const Lowered& program, const KernelOptions& options = {});
// Does prove() and generate() at the same time: either takes a second or more where it is not
// cached.
struct ProvedForGpu {
  Proved program;
  GpuCode code;
};
ProvedForGpu prove_for_gpu(Lowered program, const ProveOptions& options = {},
                           const KernelOptions& kernel = {});
// Whether there is a GPU lowering, and a block holds what it takes. It compiles nothing.
bool has_gpu_lowering(const Lowered& program);

}  // namespace stretto
