#include "stretto/runtime/idle_rank.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>

namespace stretto {
namespace {

// About 10 microseconds of spinning, a little more than a sleep and its wake cost. No sched_yield
// in between: beside other work it gives a whole time slice away, while a woken sleeper runs at
// once (docs/performance/runtime.md, 'Why the defaults are what they are').
constexpr int kSpinPolls = 32;
constexpr int kRelaxes = 16;
constexpr std::chrono::nanoseconds kFirstSleep = std::chrono::microseconds(50);

void relax_cpu() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

static_assert(sizeof(std::atomic<std::uint32_t>) == sizeof(std::uint32_t));

void futex_wait(std::atomic<std::uint32_t>* word, std::uint32_t expected, bool shared,
                std::chrono::nanoseconds longest) {
  timespec timeout{.tv_sec = 0, .tv_nsec = longest.count()};
  int operation = shared ? FUTEX_WAIT : FUTEX_WAIT_PRIVATE;
  syscall(SYS_futex, word, operation, expected, &timeout, nullptr, 0);
}

void futex_wake(std::atomic<std::uint32_t>* word, bool shared) {
  syscall(SYS_futex, word, shared ? FUTEX_WAKE : FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0);
}

}  // namespace

void IdleRank::pause(int polls) {
  int spins = crowded_ ? 0 : kSpinPolls;
  if (polls < spins) {
    armed_ = false;
    for (int i = 0; i < kRelaxes; ++i) relax_cpu();
    return;
  }
  if (!armed_) {
    armed_ = true;
    seen_wakes_ = wakes_.load(std::memory_order_relaxed);
    // Not a plain store: it must be visible before the caller's next poll reads its counters.
    listening_.exchange(true, std::memory_order_seq_cst);
    return;
  }
  armed_ = false;
  int num_sleeps = (polls - spins) / 2;
  std::chrono::nanoseconds longest = kFirstSleep * (1 << std::min(num_sleeps, 10));
  futex_wait(&wakes_, seen_wakes_, shared_,
             std::min<std::chrono::nanoseconds>(longest, kLongestSleep));
}

void IdleRank::wake_listener() {
  // Lowered by whoever wakes, so that a rank busy for long costs its notifiers one system call.
  if (!listening_.exchange(false, std::memory_order_seq_cst)) return;
  wakes_.fetch_add(1, std::memory_order_seq_cst);
  futex_wake(&wakes_, shared_);
}

}  // namespace stretto
