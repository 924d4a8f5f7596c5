// Warpgroup matrix products: descriptors, order and completion. The mma instructions themselves
// have one function per shape, written by device/wgmma_text.h.
#pragma once

#include "stretto/device/ptx/sync.h"

// Orders register and shared-memory accesses of the warpgroup before its next wgmma.
STRETTO_DEVICE void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
STRETTO_DEVICE void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int kPending>
STRETTO_DEVICE void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// Matrix descriptor (PTX ISA, "Asynchronous warpgroup level matrix multiply", matrix descriptor
// format): byte offsets between groups of 8 rows (`stride`) and between repetitions along the
// leading dimension (`leading`). kSwizzle: 128, 64, 32 bytes or 0.
// `start`: of the matrix, in units of 16 bytes, below 2^14; as 32 bits, so that sums of it carry
// nowhere.
template <u32 kSwizzle>
STRETTO_DEVICE u64 wgmma_descriptor(u32 start, u32 leading, u32 stride) {
  constexpr u32 kMode = kSwizzle == 128 ? 1 : kSwizzle == 64 ? 2 : kSwizzle == 32 ? 3 : 0;
  return u64(kMode << 30 | (stride & 0x3ffff) >> 4) << 32 |
         (((leading & 0x3ffff) >> 4) << 16 | start);
}
