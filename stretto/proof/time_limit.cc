#include "stretto/proof/time_limit.h"

#include <algorithm>
#include <utility>

#include "stretto/base/threads.h"

namespace stretto {
namespace {

// Some microseconds of a proof.
constexpr int kCallsPerLook = 1024;

}  // namespace

thread_local int TimeLimit::calls_left_ = 0;
thread_local TimeLimit::Clock::time_point TimeLimit::until_ = Clock::time_point::max();

TimeLimit::TimeLimit(std::chrono::milliseconds limit) : before_(until_) {
  if (limit.count() > 0) until_ = std::min(before_, Clock::now() + limit);
}

TimeLimit::~TimeLimit() { until_ = before_; }

void TimeLimit::look_at_clock() {
  calls_left_ = kCallsPerLook;
  if (until_ != Clock::time_point::max() && Clock::now() >= until_) {
    calls_left_ = 0;  // whoever asks next is told at once
    throw TimeIsUp();
  }
}

void TimeLimit::side_by_side(std::size_t count, std::size_t num_threads,
                             const std::function<void(std::size_t)>& work) {
  stretto::side_by_side(count, num_threads, [&work, until = until_](std::size_t i) {
    Clock::time_point before = std::exchange(until_, until);
    struct Restore {
      Clock::time_point to;
      ~Restore() { until_ = to; }
    } restore{before};
    work(i);
  });
}

}  // namespace stretto
