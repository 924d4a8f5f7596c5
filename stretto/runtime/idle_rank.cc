#include "stretto/runtime/idle_rank.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

namespace stretto {
namespace {

constexpr int kSpinPolls = 32;  // each of kRelaxes pause instructions
constexpr int kRelaxes = 16;    // tuned with world_bench
constexpr int kYieldPolls = 32;

void relax_cpu() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

static_assert(sizeof(std::atomic<std::uint32_t>) == sizeof(std::uint32_t));

void futex_wait(std::atomic<std::uint32_t>* word, std::uint32_t expected) {
  constexpr std::chrono::nanoseconds kSleep = IdleRank::kLongestSleep;
  timespec timeout{.tv_sec = 0, .tv_nsec = kSleep.count()};
  syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, expected, &timeout, nullptr, 0);
}

void futex_wake(std::atomic<std::uint32_t>* word) {
  syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0);
}

}  // namespace

void IdleRank::pause(int polls) {
  int spins = crowded_ ? 0 : kSpinPolls;
  if (polls < spins + kYieldPolls) {
    armed_ = false;
    if (polls < spins) {
      for (int i = 0; i < kRelaxes; ++i) relax_cpu();
    } else {
      sched_yield();
    }
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
  futex_wait(&wakes_, seen_wakes_);
}

void IdleRank::wake_listener() {
  // Lowered by whoever wakes, so that a rank busy for long costs its notifiers one system call.
  if (!listening_.exchange(false, std::memory_order_seq_cst)) return;
  wakes_.fetch_add(1, std::memory_order_seq_cst);
  futex_wake(&wakes_);
}

}  // namespace stretto
