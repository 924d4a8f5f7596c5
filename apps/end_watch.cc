#include "apps/end_watch.h"

#include <poll.h>
#include <unistd.h>

#include <cstdlib>
#include <utility>

#include "stretto/base/threads.h"

namespace stretto {
namespace {

constexpr int kExitFault = 3;
constexpr int kMostWaitMs = 100;  // for a reader of the log that is behind

// Not through stdio, whose lock a thread that stands still may hold.
void write_line(const std::string& line) {
  pollfd ready{.fd = STDERR_FILENO, .events = POLLOUT, .revents = 0};
  if (::poll(&ready, 1, kMostWaitMs) <= 0) return;
  if (::write(STDERR_FILENO, line.data(), line.size()) < 0) return;  // nobody hears of it
}

}  // namespace

EndWatch::EndWatch(std::function<void()> before_end) : before_end_(std::move(before_end)) {
  thread_ = start_thread("the watch over the end", [this] { run(); });
}

EndWatch::~EndWatch() {
  {
    std::lock_guard lock(mutex_);
    over_ = true;
    changed_.notify_all();
  }
  thread_.join();
}

void EndWatch::end_in(std::chrono::milliseconds time, const std::string& why) {
  const auto end = std::chrono::steady_clock::now() + time;
  std::lock_guard lock(mutex_);
  if (end_ && *end_ <= end) return;
  end_ = end;
  line_ = "stretto: fault: " + why + "\n";
  changed_.notify_all();
}

void EndWatch::run() {
  std::unique_lock lock(mutex_);
  while (!over_) {
    if (!end_) {
      changed_.wait(lock);
    } else if (changed_.wait_until(lock, *end_) == std::cv_status::timeout) {
      if (over_ || std::chrono::steady_clock::now() < *end_) continue;
      write_line(line_);
      before_end_();
      std::_Exit(kExitFault);
    }
  }
}

}  // namespace stretto
