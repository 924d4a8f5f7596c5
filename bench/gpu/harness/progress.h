// What programs say while they run, and how long they have run.
#pragma once

#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <utility>

namespace stretto::bench {

using Clock = std::chrono::steady_clock;

inline double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// A line, printed at once, so that a run that is cut short has said what it found.
template <typename... Args>
void say(fmt::format_string<Args...> text, Args&&... args) {
  fmt::print(text, std::forward<Args>(args)...);
  fmt::print("\n");
  std::fflush(stdout);
}

}  // namespace stretto::bench
