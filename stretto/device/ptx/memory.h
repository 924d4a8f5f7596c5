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
STRETTO_DEVICE void count_relaxed_gpu(u64* p, u64 n) {
  asm volatile("red.relaxed.gpu.global.add.u64 [%0], %1;" ::"l"(p), "l"(n) : "memory");
}
STRETTO_DEVICE void store_relaxed_sys(u64* p, u64 v) {
  asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}
// Two words side by side, at 16 bytes; each of them arrives whole.
STRETTO_DEVICE void load_relaxed_sys(u64 (&v)[2], const u64* p) {
  asm volatile("ld.relaxed.sys.global.v2.u64 {%0, %1}, [%2];"
               : "=l"(v[0]), "=l"(v[1])
               : "l"(p)
               : "memory");
}
STRETTO_DEVICE void store_relaxed_sys(u64* p, const u64 (&v)[2]) {
  asm volatile("st.relaxed.sys.global.v2.u64 [%0], {%1, %2};" ::"l"(p), "l"(v[0]), "l"(v[1])
               : "memory");
}
// 16 bytes of a line of 128 at `p` rounded down, which eight threads store, or load, by one
// instruction; it arrives whole (docs/decisions/0019-packets-in-lines.md).
STRETTO_DEVICE void store_line(u64* p, const u64 (&v)[2]) {
  asm volatile("st.volatile.global.v2.u64 [%0], {%1, %2};" ::"l"(p), "l"(v[0]), "l"(v[1])
               : "memory");
}
STRETTO_DEVICE void load_line(u64 (&v)[2], const u64* p) {
  asm volatile("ld.volatile.global.v2.u64 {%0, %1}, [%2];"
               : "=l"(v[0]), "=l"(v[1])
               : "l"(p)
               : "memory");
}
// 16 or 8 bytes as one access.
STRETTO_DEVICE void store_words(void* p, const u32 (&w)[4]) {
  asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(p), "r"(w[0]), "r"(w[1]), "r"(w[2]),
               "r"(w[3])
               : "memory");
}
STRETTO_DEVICE void store_words(void* p, const u32 (&w)[2]) {
  asm volatile("st.global.v2.b32 [%0], {%1, %2};" ::"l"(p), "r"(w[0]), "r"(w[1]) : "memory");
}
STRETTO_DEVICE void fence_acq_rel_sys() { asm volatile("fence.acq_rel.sys;" ::: "memory"); }
STRETTO_DEVICE void fence_acq_rel_gpu() { asm volatile("fence.acq_rel.gpu;" ::: "memory"); }
STRETTO_DEVICE u64 global_timer_ns() {
  u64 t;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
  return t;
}
// At most twice as long.
STRETTO_DEVICE void pause_ns(u32 ns) { asm volatile("nanosleep.u32 %0;" ::"r"(ns)); }
