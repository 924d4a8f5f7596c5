// Says that something goes on, where it takes longer than people wait without a word.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

namespace stretto {

// While it lives: a line on standard error after `first`, and again whenever the time so far has
// doubled. Nothing where it is over before. Costs a thread; for what is done once, not in a loop.
class SlowNotice {
 public:
  using Say = std::function<void(const std::string& line)>;

  // `what` as in "<what>, 2 s so far".
  explicit SlowNotice(std::string what, std::chrono::milliseconds first = std::chrono::seconds(2),
                      Say say = to_standard_error);
  ~SlowNotice();
  SlowNotice(const SlowNotice&) = delete;
  SlowNotice& operator=(const SlowNotice&) = delete;

 private:
  static void to_standard_error(const std::string& line);
  void watch(std::chrono::milliseconds first);

  const std::string what_;
  const Say say_;
  std::mutex mutex_;
  std::condition_variable ended_;
  bool over_ = false;
  std::thread watcher_;
};

}  // namespace stretto
