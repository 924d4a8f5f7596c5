// What a launch works on: where the tensors of a program are, on CPU ranks and on GPUs. Comes
// before executor/executor.h, gpu/gpu_instance.h and launch/executable.h, which take it.
#pragma once

#include <cstddef>
#include <vector>

#include "stretto/runtime/cuda/driver_types.h"
#include "stretto/runtime/world.h"

namespace stretto {

// Where a tensor is. Memory is as large as its shape at the bounds asks for; on GPUs it is the
// device's, and aligned to 16 bytes.
struct TensorArg {
  // Only the rank that launches uses it.
  void* data = nullptr;
  // All ranks' memory: from Rank::allocate, or on GPUs the name, the size and every rank's address
  // of what GpuWorld::allocate made. What is symmetric in the program comes so, or as `on`.
  const SymmetricBuffer* symmetric = nullptr;
  std::size_t offset_bytes = 0;  // in `symmetric`, the same on all ranks
  // On GPUs: [rank], every rank's address as this process sees it. Where a process launches on
  // several GPUs, what its ranks have each for itself comes so, too.
  std::vector<cuda::CUdeviceptr> on = {};
  friend bool operator==(const TensorArg&, const TensorArg&) = default;
};

// All but the extents of a launch.
struct Args {
  std::vector<TensorArg> tensors;  // [program.tensors.size()]; entries of buffers are ignored
  // On GPUs, or nowhere: each rank's memory that holds the scalars, i64 in declaration order.
  // Kernels read them there when they start, and the scalars among the extents count for nothing. A
  // graph that captured such a launch can be replayed with other scalars; its extents are fixed.
  TensorArg scalars = {};
  // On GPUs: blocks may take their SMs while the stream's launch before, another kernel, is ending;
  // until it has ended they touch no memory but the kernel's constants (codegen/kernel.h:
  // KernelOptions), which nothing since the last launch without this may have written. Ignored
  // where blocks wait for each other so that all must be resident.
  bool starts_early = false;
};

}  // namespace stretto
