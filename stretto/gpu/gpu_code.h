// From a lowered program to the kernel that GPUs load: generated, then compiled by NVRTC or found
// in the cache. Needs no GPU.
//
// Before: compiler.h lowered the program. After: load() of launch/executable.h takes it with the
// proved program.
#pragma once

#include <memory>

#include "stretto/codegen/kernel.h"
#include "stretto/compiler.h"
#include "stretto/runtime/cuda/nvrtc.h"

namespace stretto {

// A program's kernel, compiled. Independent of any GPU; may be made on several threads at once.
struct GpuCode {
  std::shared_ptr<const Program> program;  // of which it is
  GeneratedKernel kernel;
  cuda::KernelImage image;
};
// For options.target. UserError for a program that has no GPU lowering; InternalError where the
// generated kernel does not compile cleanly.
GpuCode generate(const Lowered& program, const KernelOptions& options = {});
// prove() and generate() at the same time: either takes a second or more where it is not
// cached.
struct ProvedForGpu {
  Proved program;
  GpuCode code;
};
ProvedForGpu prove_for_gpu(Lowered program, const ProveOptions& options = {},
                           const KernelOptions& kernel = {});
// Whether there is a GPU lowering, and a block holds what it takes. Compiles nothing.
bool has_gpu_lowering(const Lowered& program);

}  // namespace stretto
