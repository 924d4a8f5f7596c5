// Copies of a few bytes from global to shared memory that do not pass through registers (PTX ISA,
// cp.async).
#pragma once

#include "stretto/device/ptx/sync.h"

// kBytes are written, of which `bytes` are read and the rest is zero. Whole units of 16 bytes go
// past the L1 cache.
template <int kBytes>
STRETTO_DEVICE void copy_async(void* to, const void* from, int bytes) {
  static_assert(kBytes == 4 || kBytes == 8 || kBytes == 16);
  if constexpr (kBytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(smem_address(to)), "l"(from),
                 "r"(bytes)
                 : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(smem_address(to)), "l"(from),
                 "n"(kBytes), "r"(bytes)
                 : "memory");
  }
}
// All of the bytes, or zeros where nothing `exists`.
template <int kBytes>
STRETTO_DEVICE void copy_async_or_zero(void* to, const void* from, bool exists) {
  static_assert(kBytes == 4 || kBytes == 8 || kBytes == 16);
  u32 missing = exists ? 0 : 1;
  if constexpr (kBytes == 16) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.u32 p, %2, 0;\n"
        "cp.async.cg.shared.global [%0], [%1], 16, p;\n}" ::"r"(smem_address(to)),
        "l"(from), "r"(missing)
        : "memory");
  } else {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.u32 p, %3, 0;\n"
        "cp.async.ca.shared.global [%0], [%1], %2, p;\n}" ::"r"(smem_address(to)),
        "l"(from), "n"(kBytes), "r"(missing)
        : "memory");
  }
}
// Arrives once this thread's copies so far are complete; the barrier counts every thread.
STRETTO_DEVICE void mbarrier_arrive_after_copies(u64* bar) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(smem_address(bar))
               : "memory");
}
