// Threads for what requests cost before the model sees them: parsing and tokenizing. A text of many
// megabytes keeps one of them busy and nobody else waiting.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace stretto {

class TextWorkers {
 public:
  TextWorkers(int num_threads, std::size_t max_waiting);
  ~TextWorkers();  // what waits is dropped
  TextWorkers(const TextWorkers&) = delete;
  TextWorkers& operator=(const TextWorkers&) = delete;

  // False where too many wait already. `work` must not throw.
  bool post(std::function<void()> work);

 private:
  void run();
  void stop();

  std::size_t max_waiting_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> waiting_;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace stretto
