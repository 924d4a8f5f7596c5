// How a rank waits without burning a core, and how a notifier wakes it: spin, then sleep on a futex
// for 50 microseconds, 100, ... up to kLongestSleep. The wake is a hint: a notifier that gives none
// costs the waiter one sleep, never its progress.
//
// The rank sleeps in two steps, because it polls conditions that this class does not know: one call
// raises `listening_`, the caller polls once more, and only the next call sleeps. A notifier that
// adds to its counter and then looks at the flag thus either sees it or is seen by that poll.
//
// No state of it can be left behind by a thread that ends in the middle: at worst a wake is lost.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace stretto {

class alignas(64) IdleRank {
 public:
  static constexpr std::chrono::milliseconds kLongestSleep{1};

  // Whether ranks outnumber cores: a spinning rank would then keep the one it waits for from
  // running.
  void set_crowded(bool crowded) { crowded_ = crowded; }

  // Whether other processes wake it: this object then lies in memory that they map too.
  void set_shared(bool shared) { shared_ = shared; }

  // By the waiting rank's thread alone. `polls`: failed polls in a row.
  void pause(int polls);

  // By any thread, after the store that the rank may be waiting for. A load where nobody sleeps.
  void wake() {
    if (listening_.load(std::memory_order_seq_cst)) wake_listener();
  }

 private:
  void wake_listener();

  std::atomic<std::uint32_t> wakes_{0};  // the futex word
  std::atomic<bool> listening_{false};
  std::uint32_t seen_wakes_ = 0;  // the waiting thread's
  bool armed_ = false;            // the waiting thread's: it raised listening_ in its last call
  bool crowded_ = false;
  bool shared_ = false;
};

}  // namespace stretto
