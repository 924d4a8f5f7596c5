// A proof that takes longer than its caller waits ends as not complete. Whoever proves leaves the
// limit here, for its thread; what takes long in a proof looks at it now and then.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>

namespace stretto {

// The limit is reached. Not an Error: nobody who tries something, and goes on where it does not do,
// takes it for an answer.
struct TimeIsUp {};

class TimeLimit {
 public:
  // Of this thread's proof while this lives; 0: none.
  explicit TimeLimit(std::chrono::milliseconds limit);
  ~TimeLimit();
  TimeLimit(const TimeLimit&) = delete;
  TimeLimit& operator=(const TimeLimit&) = delete;

  // Throws TimeIsUp where the time is up. Looks at the clock once in so many calls; a call costs a
  // nanosecond.
  static void look() {
    if (--calls_left_ < 0) look_at_clock();
  }
  // As side_by_side of base/threads.h, under the limit of this thread.
  static void side_by_side(std::size_t count, std::size_t num_threads,
                           const std::function<void(std::size_t)>& work);

 private:
  using Clock = std::chrono::steady_clock;
  static void look_at_clock();

  static thread_local int calls_left_;
  static thread_local Clock::time_point until_;
  Clock::time_point before_;
};

}  // namespace stretto
