// Where a launch's tensors are on the GPUs of a world.
#pragma once

#include <cstdint>
#include <vector>

#include "stretto/gpu/gpu_world.h"

namespace stretto {

// What a launch works on. Every rank's address of every tensor that is the caller's: inputs,
// outputs, state; entries of buffers are ignored. Addresses are aligned to 16 bytes. In a world of
// processes those of other ranks are as this process sees them, and count only for tensors that
// the program reaches on other ranks.
struct GpuLaunchArgs {
  std::vector<std::vector<CUdeviceptr>> tensors;  // [tensor][rank]
  std::vector<std::int64_t> extents;  // kExtent and kScalar variables in declaration order
  // [rank], or empty. Where each rank's memory holds the scalars, i64 in declaration order: kernels
  // read them there when they start, and the scalars among `extents` count for nothing. A graph
  // that captured such a launch can be replayed with other scalars; its extents are fixed.
  std::vector<CUdeviceptr> scalars;
  // Blocks may take their SMs while the stream's launch before, another kernel, is ending; until it
  // has ended they touch no memory but the kernel's constants (codegen/kernel.h: KernelOptions),
  // which nothing since the last launch without this may have written. Ignored where blocks wait
  // for each other so that all must be resident.
  bool starts_early = false;
};

}  // namespace stretto
