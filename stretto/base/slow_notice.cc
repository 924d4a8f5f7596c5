#include "stretto/base/slow_notice.h"

#include <fmt/format.h>

#include <new>
#include <system_error>
#include <utility>

#include "stretto/base/say.h"

namespace stretto {

SlowNotice::SlowNotice(std::string what, std::chrono::milliseconds first, Say say)
    : what_(std::move(what)), say_(std::move(say)) {
  try {
    watcher_ = std::thread([this, first] { watch(first); });
  } catch (const std::system_error&) {  // no thread is left: it goes on without a word
  }
}

SlowNotice::~SlowNotice() {
  {
    std::lock_guard lock(mutex_);
    over_ = true;
  }
  ended_.notify_one();
  if (watcher_.joinable()) watcher_.join();
}

void SlowNotice::to_standard_error(const std::string& line) { say("stretto: {}\n", line); }

void SlowNotice::watch(std::chrono::milliseconds first) {
  const auto begin = std::chrono::steady_clock::now();
  std::unique_lock lock(mutex_);
  for (std::chrono::milliseconds next = first;; next *= 2) {
    if (ended_.wait_until(lock, begin + next, [this] { return over_; })) return;
    try {
      say_(fmt::format("{}, {:.3g} s so far", what_, static_cast<double>(next.count()) / 1000));
    } catch (const std::bad_alloc&) {  // it goes on without a word
    }
  }
}

}  // namespace stretto
