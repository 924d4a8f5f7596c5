// Barriers inside a block or cluster: mbarriers, named barriers, cluster barriers; register
// budgets; proxy fences. Names carry order and scope.
#pragma once

#include "stretto/device/ptx/types.h"

STRETTO_DEVICE u32 smem_address(const void* p) { return u32(__cvta_generic_to_shared(p)); }

STRETTO_DEVICE void mbarrier_init(u64* bar, u32 arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(smem_address(bar)), "r"(arrivals));
}
STRETTO_DEVICE void mbarrier_init_fence_cluster() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
STRETTO_DEVICE void mbarrier_arrive_release_cta(u64* bar) {
  asm volatile("mbarrier.arrive.release.cta.shared::cta.b64 _, [%0];" ::"r"(smem_address(bar))
               : "memory");
}
// For all lanes of a warp, which have met.
STRETTO_DEVICE void mbarrier_arrive_warp_release_cta(u64* bar) {
  asm volatile("mbarrier.arrive.release.cta.shared::cta.b64 _, [%0], 32;" ::"r"(smem_address(bar))
               : "memory");
}
STRETTO_DEVICE void fence_acq_rel_cta() { asm volatile("fence.acq_rel.cta;" ::: "memory"); }
STRETTO_DEVICE void fence_acq_rel_cluster() { asm volatile("fence.acq_rel.cluster;" ::: "memory"); }
// On the barrier at the same offset in block `cta` of the cluster. Orders nothing: for slots that
// the tensor core has read, whose reads a completed wgmma wait has ended; after a fence also for
// those that threads of this block have read.
STRETTO_DEVICE void mbarrier_arrive_relaxed_cluster(u64* bar, u32 cta) {
  asm volatile(
      "{\n.reg .b32 remote;\n"
      "mapa.shared::cluster.u32 remote, %0, %1;\n"
      "mbarrier.arrive.relaxed.cluster.shared::cluster.b64 _, [remote];\n}" ::"r"(
          smem_address(bar)),
      "r"(cta)
      : "memory");
}
STRETTO_DEVICE void mbarrier_arrive_expect_tx(u64* bar, u32 bytes) {
  asm volatile(
      "mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 _, [%0], %1;" ::"r"(smem_address(bar)),
      "r"(bytes)
      : "memory");
}
STRETTO_DEVICE bool mbarrier_try_wait_acquire_cta(u64* bar, u32 parity) {
  u32 done;
  asm volatile(
      "{\n.reg .pred p;\n"
      "mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 p, [%1], %2;\n"
      "selp.b32 %0, 1, 0, p;\n}"
      : "=r"(done)
      : "r"(smem_address(bar)), "r"(parity)
      : "memory");
  return done != 0;
}
// The partner is an agent of the same worker, whose waits on other ranks all have deadlines.
STRETTO_DEVICE void mbarrier_wait_acquire_cta(u64* bar, u32 parity) {
  while (!mbarrier_try_wait_acquire_cta(bar, parity)) {
  }
}
// The form for barriers on which other blocks of the cluster arrive relaxed.
STRETTO_DEVICE bool mbarrier_try_wait_relaxed_cluster(u64* bar, u32 parity) {
  u32 done;
  asm volatile(
      "{\n.reg .pred p;\n"
      "mbarrier.try_wait.parity.relaxed.cluster.shared::cta.b64 p, [%1], %2;\n"
      "selp.b32 %0, 1, 0, p;\n}"
      : "=r"(done)
      : "r"(smem_address(bar)), "r"(parity)
      : "memory");
  return done != 0;
}
STRETTO_DEVICE void mbarrier_wait_relaxed_cluster(u64* bar, u32 parity) {
  while (!mbarrier_try_wait_relaxed_cluster(bar, parity)) {
  }
}

STRETTO_DEVICE void named_barrier_sync(u32 id, u32 threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
STRETTO_DEVICE void named_barrier_arrive(u32 id, u32 threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// Words in shared memory.
STRETTO_DEVICE void store_release_cta(u32* word, u32 value) {
  asm volatile("st.release.cta.shared::cta.u32 [%0], %1;" ::"r"(smem_address(word)), "r"(value)
               : "memory");
}
STRETTO_DEVICE u32 load_volatile_shared(const volatile u32* word) {
  u32 value;
  asm volatile("ld.volatile.shared.u32 %0, [%1];"
               : "=r"(value)
               : "r"(smem_address(const_cast<const u32*>(word)))
               : "memory");
  return value;
}
STRETTO_DEVICE u32 load_acquire_cta(const u32* word) {
  u32 value;
  asm volatile("ld.acquire.cta.shared::cta.u32 %0, [%1];"
               : "=r"(value)
               : "r"(smem_address(word))
               : "memory");
  return value;
}

STRETTO_DEVICE void cluster_arrive_release() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
STRETTO_DEVICE void cluster_wait_acquire() {
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
STRETTO_DEVICE u32 cluster_cta_rank() {
  u32 r;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));
  return r;
}

template <u32 kRegisters>
STRETTO_DEVICE void register_budget_raise() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <u32 kRegisters>
STRETTO_DEVICE void register_budget_lower() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// Generic-proxy writes of shared memory before accesses by TMA or wgmma.
STRETTO_DEVICE void fence_proxy_async_shared() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
// Between generic-proxy and TMA accesses of global memory.
STRETTO_DEVICE void fence_proxy_async_global() {
  asm volatile("fence.proxy.async.global;" ::: "memory");
}

// Launches of a stream that overlap at their edges (PTX ISA, griddepcontrol): once every block has
// come here, the next launch's blocks may take what room there is.
STRETTO_DEVICE void let_next_launch_start() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}
// Until the launch before has ended and its writes are visible; at once where it had ended anyway.
STRETTO_DEVICE void wait_for_previous_launch() {
  asm volatile("griddepcontrol.wait;" ::: "memory");
}

// True in one lane of a fully active warp.
STRETTO_DEVICE bool elect_one() {
  u32 elected;
  asm volatile(
      "{\n.reg .pred p;\n.reg .b32 lane;\n"
      "elect.sync lane|p, 0xffffffff;\n"
      "selp.b32 %0, 1, 0, p;\n}"
      : "=r"(elected));
  return elected != 0;
}
