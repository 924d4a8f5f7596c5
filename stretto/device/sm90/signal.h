// Signals: monotone 64-bit counters in symmetric memory, and the watchdog around every wait.
#pragma once

#include "stretto/abi/fault_record.h"
#include "stretto/device/ptx/memory.h"
#include "stretto/device/ptx/sync.h"

// What every wait consults after a failed poll. `abort` is raised on all ranks when one gives up;
// from then on every wait succeeds.
struct Watch {
  u64* abort;
  DeviceFault* fault;  // host-mapped, as is the abort word
  u64 timeout_ns;
  i64 rank;
};

// The abort word lies in host memory, so it is looked at now and then only.
constexpr u32 kPollsPerCheck = 256;

// `site` indexes the launch plan's list of waits.
STRETTO_DEVICE void report_fault(const Watch& w, int site, i64 counter, u64 expected, u64 seen) {
  if (atomicExch_system(&w.fault->claimed, 1u) == 0) {
    w.fault->site = site;
    w.fault->rank = int(w.rank);
    w.fault->block = int(blockIdx.x);
    w.fault->counter = counter;
    w.fault->expected = expected;
    w.fault->seen = seen;
    fence_acq_rel_sys();
    store_relaxed_sys(&w.fault->ready, 1);
  }
  store_relaxed_sys(w.abort, 1);
}

// One thread waits; the acquire covers the threads that it then meets at a barrier. The clock and
// the abort word are read only after a failed poll.
STRETTO_DEVICE void wait_acquire_sys(const u64* word, u64 target, const Watch& w, int site,
                                     i64 counter) {
  if (load_acquire_sys(word) >= target) return;
  u64 begin = global_timer_ns();
  for (u32 polls = 1;; ++polls) {
    u64 seen = load_acquire_sys(word);
    if (seen >= target) return;
    if (polls % kPollsPerCheck != 0) continue;
    if (load_relaxed_sys(w.abort) != 0) return;
    if (global_timer_ns() - begin > w.timeout_ns) {
      report_fault(w, site, counter, target, seen);
      return;
    }
  }
}

// The payload of a packet once it carries `tag`.
STRETTO_DEVICE u32 wait_packet(const u64* word, u32 tag, const Watch& w, int site) {
  u64 seen = load_relaxed_sys(word);
  if (u32(seen >> 32) == tag) return u32(seen);
  u64 begin = global_timer_ns();
  for (u32 polls = 1;; ++polls) {
    seen = load_relaxed_sys(word);
    if (u32(seen >> 32) == tag) return u32(seen);
    if (polls % kPollsPerCheck != 0) continue;
    if (load_relaxed_sys(w.abort) != 0) return u32(seen);
    if (global_timer_ns() - begin > w.timeout_ns) {
      report_fault(w, site, -1, tag, seen >> 32);
      return u32(seen);
    }
  }
}
