// Bulk tensor copies between global and shared memory (TMA). Coordinates are innermost first.
#pragma once

#include "stretto/device/ptx/sync.h"

STRETTO_DEVICE void tma_prefetch_map(const TensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}
STRETTO_DEVICE void tma_load_3d(void* dst, const TensorMap* map, u64* bar, i32 x, i32 y, i32 z) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes"
      " [%0], [%1, {%3, %4, %5}], [%2];" ::"r"(smem_address(dst)),
      "l"(map), "r"(smem_address(bar)), "r"(x), "r"(y), "r"(z)
      : "memory");
}
// To the same offset in every block of the cluster whose bit is set in `mask`; each signals its own
// barrier.
STRETTO_DEVICE void tma_load_3d_multicast(void* dst, const TensorMap* map, u64* bar, i32 x, i32 y,
                                          i32 z, u16 mask) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes"
      ".multicast::cluster [%0], [%1, {%3, %4, %5}], [%2], %6;" ::"r"(smem_address(dst)),
      "l"(map), "r"(smem_address(bar)), "r"(x), "r"(y), "r"(z), "h"(mask)
      : "memory");
}
STRETTO_DEVICE void tma_store_3d(const TensorMap* map, const void* src, i32 x, i32 y, i32 z) {
  asm volatile(
      "cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%2, %3, %4}], [%1];" ::"l"(map),
      "r"(smem_address(src)), "r"(x), "r"(y), "r"(z)
      : "memory");
}
STRETTO_DEVICE void tma_store_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
// The source of all but the last kPending groups may be overwritten.
template <int kPending>
STRETTO_DEVICE void tma_store_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}
// All but the last kPending groups are written.
template <int kPending>
STRETTO_DEVICE void tma_store_wait() {
  asm volatile("cp.async.bulk.wait_group %0;" ::"n"(kPending) : "memory");
}
