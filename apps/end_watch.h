// Ends a process that ought to have ended: where threads do not return, nobody can join them, and
// what owns them cannot be destroyed. Used by `stretto serve`.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

namespace stretto {

class EndWatch {
 public:
  // `before_end` is called before the process is ended, on a thread of this. UserError where there
  // is no thread.
  explicit EndWatch(std::function<void()> before_end);
  // All has ended in time.
  ~EndWatch();
  EndWatch(const EndWatch&) = delete;
  EndWatch& operator=(const EndWatch&) = delete;

  // If this object is still there after so long, the process ends with the exit code of a Fault
  // (docs/guide/errors.md), and `why` on standard error. Of several calls the earliest end counts.
  // From any thread.
  void end_in(std::chrono::milliseconds time, const std::string& why);

 private:
  void run();

  std::function<void()> before_end_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<std::chrono::steady_clock::time_point> end_;
  std::string line_;  // made beforehand: at the end there may be no memory, or no lock on it
  bool over_ = false;
  std::thread thread_;
};

}  // namespace stretto
