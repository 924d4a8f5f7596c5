// How the warpgroups of a staggered agent meet before a notify: a barrier would have the first wait
// for the last at every tile, and end the stagger.
#pragma once

#include "stretto/device/ptx/sync.h"
#include "stretto/device/sm90/layout.h"

// In a block, 128 threads each; those of TMA stores, which no warpgroup is at meanwhile.
constexpr u32 kWarpgroupBarrier = 8;
STRETTO_DEVICE void meet_in_warpgroup() {
  named_barrier_sync(kWarpgroupBarrier + threadIdx.x / 128, 128);
}

// Of one agent. Each warpgroup but the last says to how many notifies it has come; the last one
// notifies for all once the others have come to the same. The counts are released and acquired, so
// the notify releases what every thread of the agent did before it came.
template <u32 kWarpgroups>
struct Meeting {
  u32* counts;  // in shared memory, zero at first; of the warpgroups but the last
  u32 own = 0;

  // By all threads. True for the one that notifies.
  STRETTO_DEVICE bool come(const Team& t) {
    meet_in_warpgroup();
    ++own;
    u32 warpgroup = t.tid / 128;
    if (t.tid % 128 != 0) return false;
    if (warpgroup + 1 < kWarpgroups) {
      store_release_cta(counts + warpgroup, own);
      return false;
    }
#pragma unroll
    for (u32 i = 0; i + 1 < kWarpgroups; ++i) {
      while (i32(load_acquire_cta(counts + i) - own) < 0) {
      }
    }
    return true;
  }
};
