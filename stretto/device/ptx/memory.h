// Global memory words with order and scope, and clocks.
#pragma once

#include "stretto/device/ptx/types.h"

STRETTO_DEVICE u64 load_acquire_sys(const u64* p) {
  u64 v;
  asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
  return v;
}
STRETTO_DEVICE u64 load_relaxed_sys(const u64* p) {
  u64 v;
  asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
  return v;
}
STRETTO_DEVICE void add_release_sys(u64* p, u64 n) {
  asm volatile("red.release.sys.global.add.u64 [%0], %1;" ::"l"(p), "l"(n) : "memory");
}
STRETTO_DEVICE u64 add_relaxed_gpu(u64* p, u64 n) {
  u64 old;
  asm volatile("atom.relaxed.gpu.global.add.u64 %0, [%1], %2;"
               : "=l"(old)
               : "l"(p), "l"(n)
               : "memory");
  return old;
}
STRETTO_DEVICE void store_relaxed_sys(u64* p, u64 v) {
  asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}
STRETTO_DEVICE void fence_acq_rel_sys() { asm volatile("fence.acq_rel.sys;" ::: "memory"); }
STRETTO_DEVICE void fence_acq_rel_gpu() { asm volatile("fence.acq_rel.gpu;" ::: "memory"); }
STRETTO_DEVICE u64 global_timer_ns() {
  u64 t;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
  return t;
}
// A packet: 4 payload bytes and a 4-byte tag that arrive together.
STRETTO_DEVICE void store_packet_relaxed_sys(u64* p, u32 payload, u32 tag) {
  store_relaxed_sys(p, (u64(tag) << 32) | payload);
}
