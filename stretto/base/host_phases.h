// Where a thread's time on the host goes, by named phases of the code: what a call costs before a
// device has it (docs/performance/runtime.md, 'Enqueueing'). While nobody measures, a phase costs a
// test of a flag; else two reads of a clock.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace stretto {

// Measures the thread that made it until finish(), one at a time in a thread.
class HostPhases {
 public:
  struct Spent {
    std::int64_t count = 0;
    double ns = 0;  // without that of phases within it
  };

  HostPhases();
  ~HostPhases() { finish(); }
  HostPhases(const HostPhases&) = delete;
  HostPhases& operator=(const HostPhases&) = delete;

  // On the same thread, within no phase: what was spent since it was made, by phase; the second
  // time nothing.
  std::map<std::string, Spent> finish();

 private:
  friend class HostPhase;
  using Clock = std::chrono::steady_clock;
  struct Phase {
    const char* name;
    Spent spent;
  };

  static HostPhases* of_this_thread();
  void enter(const char* name);
  void leave();
  void charge();

  static inline std::atomic<int> num_measured = 0;  // threads

  std::vector<Phase> phases_;
  std::vector<std::size_t> within_;  // the phases that the thread is in, the innermost last
  Clock::time_point since_;          // when it came there
  bool is_on_ = true;
};

// A phase from here to the end of the scope. `name` is the same text at every time, at the same
// address.
class HostPhase {
 public:
  explicit HostPhase(const char* name) {
    if (HostPhases::num_measured.load(std::memory_order_relaxed) == 0) return;
    measured_ = HostPhases::of_this_thread();
    if (measured_ != nullptr) measured_->enter(name);
  }
  ~HostPhase() {
    if (measured_ != nullptr) measured_->leave();
  }
  HostPhase(const HostPhase&) = delete;
  HostPhase& operator=(const HostPhase&) = delete;

 private:
  HostPhases* measured_ = nullptr;
};

}  // namespace stretto
