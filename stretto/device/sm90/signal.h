// Signals: monotone 64-bit counters in symmetric memory, and the watchdog around every wait.
#pragma once

#include "stretto/abi/fault_record.h"
#include "stretto/device/ptx/memory.h"
#include "stretto/device/ptx/sync.h"

// What every wait consults after a failed poll. `abort` is raised on all ranks when one aborts;
// from then on every wait succeeds.
struct Watch {
  u64* abort;
  DeviceFault* fault;  // host-mapped, as is the abort word
  u64 timeout_ns;
  i64 rank;
  u64* here;  // on the own device: whether a wait has aborted, when `abort` was last looked at
};

// Measurements of what the watchdog costs compile without it.
#ifdef STRETTO_WITHOUT_WATCHDOG
constexpr bool kWatched = false;
#else
constexpr bool kWatched = true;
#endif

// A wait polls without pause for some 20 us. Then it pauses between polls, which acquire nothing
// until it has seen what it waits for: every load that acquires empties the L1 cache of its SM,
// through which other threads of the block may be loading. The abort word lies in host memory,
// where many readers at a time wait for milliseconds and keep the copy engines from getting on: one
// thread of a device looks at it now and then, for all others, who look at a word of the device
// (docs/decisions/0009-waits-leave-host-memory-alone.md).
constexpr u32 kTightPolls = 64;
constexpr u32 kPauseNs = 100;
constexpr u64 kLookNs = 200'000;         // since the first poll, or the look before
constexpr i64 kAbortLookNs = 1'000'000;  // of the whole device

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
  store_relaxed_sys(w.here, 1);
}

// Whether this rank or another has aborted, as far as is known here.
STRETTO_DEVICE bool world_has_aborted(const Watch& w, u64 now) {
  if (load_relaxed_sys(w.here) != 0) return true;
  u64 last = load_relaxed_sys(w.here + 1);
  if (i64(now - last) < kAbortLookNs) return false;
  if (atomicExch_system(w.here + 1, now) != last) return false;  // another thread looks
  if (load_relaxed_sys(w.abort) == 0) return false;
  store_relaxed_sys(w.here, 1);
  return true;
}

// Counts failed polls of one wait; looks at the clock, and whether to abort, now and then.
struct PollClock {
  u32 polls = 0;
  u64 begin = 0, next_look = 0;

  STRETTO_DEVICE bool pauses() const { return polls >= kTightPolls; }
  // After a failed poll: whether to stop waiting, since this rank or another has aborted.
  STRETTO_DEVICE bool aborts(const Watch& w, int site, i64 counter, u64 expected, u64 seen) {
    if (!kWatched) return false;
    if (!pauses()) {
      if (polls++ == 0) begin = global_timer_ns();
      next_look = begin + kLookNs;
      return false;
    }
    pause_ns(kPauseNs);
    u64 now = global_timer_ns();
    if (now < next_look) return false;
    next_look = now + kLookNs;
    if (world_has_aborted(w, now)) return true;
    if (now - begin <= w.timeout_ns) return false;
    report_fault(w, site, counter, expected, seen);
    return true;
  }
};

// One thread polls; the acquire covers the threads that it then meets at a barrier. Whether it has
// seen the target, and not aborted. `aborted`: see below; null where nobody asks.
STRETTO_DEVICE bool poll_acquire_sys(const u64* word, u64 target, const Watch& w, int site,
                                     i64 counter, PollClock& clock,
                                     const volatile u32* aborted = nullptr) {
  bool came = false;
  for (;;) {
    u64 seen = clock.pauses() ? load_relaxed_sys(word) : load_acquire_sys(word);
    came = seen >= target;
    if (came || clock.aborts(w, site, counter, target, seen)) break;
    if (aborted != nullptr && clock.pauses() && *aborted != 0) break;
  }
  if (clock.pauses()) load_acquire_sys(word);  // counters only grow
  return came;
}

STRETTO_DEVICE void wait_acquire_sys(const u64* word, u64 target, const Watch& w, int site,
                                     i64 counter) {
  PollClock clock;
  poll_acquire_sys(word, target, w, site, counter, clock);
}

// What a thread has waited for in this launch: the counters, as many as Bits has, that had got
// `kCount` or more. A counter only grows, and what the thread acquired it has.
template <class Bits, u64 kCount>
struct PassedWaits {
  Bits counters = 0;

  STRETTO_DEVICE bool holds(i64 counter, u64 count) const {
    return (counters >> counter & 1) != 0 && count <= kCount;
  }
  STRETTO_DEVICE void add(i64 counter, u64 count) {
    if (count >= kCount) counters |= Bits(1) << counter;
  }
};

// `aborted` is two words of the block's shared memory. The second is never read. The first is no
// longer 0 once a wait of the block has aborted, or has ended after another one of the rank had.
// From then on the block stores nothing to other ranks, whose owners may look at their memory once
// they have the fault, and notifies nobody: who would have been notified aborts in turn.
//
// Where a launch makes the tables that it goes by (device/sm90/table.h), agents of a block go by
// the same entries, and one that goes by others waits for what never comes. So a block that has
// aborted stores no entries, and the first to abort pauses until those have ended who had begun to
// store.
constexpr u32 kAborted = 1, kAbortedAndPaused = 2;

// Read as shared memory in so many words: beside products the assembler spills (CUDA 13.0) where it
// has to find that out.
STRETTO_DEVICE bool has_aborted(const volatile u32* aborted) {
  return load_volatile_shared(aborted) != 0;
}

STRETTO_DEVICE void abort_block(volatile u32* aborted) {
  constexpr u64 kLongNs = 1'000'000;
  if (*aborted != kAbortedAndPaused) {
    // A pause may be as short as nothing (PTX ISA, nanosleep).
    for (u64 until = global_timer_ns() + kLongNs; global_timer_ns() < until;) pause_ns(100'000);
  }
  *aborted = kAbortedAndPaused;
}

STRETTO_DEVICE void wait_acquire_sys(const u64* word, u64 target, const Watch& w, int site,
                                     i64 counter, volatile u32* aborted) {
  PollClock clock;
  if (!poll_acquire_sys(word, target, w, site, counter, clock, aborted)) {
    abort_block(aborted);
  } else if (clock.pauses() && load_relaxed_sys(w.here) != 0 && *aborted == 0) {
    *aborted = kAborted;
  }
}

// Before an agent's first access that others see: a launch before it, or another block, may have
// aborted. Without a branch, which costs agents that multiply registers.
STRETTO_DEVICE void abort_if_rank_has(const Watch& w, volatile u32* aborted) {
  aborted[load_relaxed_sys(w.here) != 0 ? 0 : 1] = kAborted;
}

// What a notify adds: nothing once the block has aborted. Without a branch, as above.
STRETTO_DEVICE u64 count_unless_aborted(u64 count, const volatile u32* aborted) {
  return has_aborted(aborted) ? 0 : count;
}

// The row from which TMA stores: once the block has aborted one outside of any tensor, where it
// stores nothing.
STRETTO_DEVICE i32 row_unless_aborted(i32 row, const volatile u32* aborted) {
  constexpr i32 kNowhere = 1 << 30;
  return has_aborted(aborted) ? kNowhere : row;
}
