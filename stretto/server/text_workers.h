// Threads for what requests cost before the model sees them: parsing and tokenizing. Texts that
// take long have a queue and a thread of their own, one after the other, so that short ones never
// wait behind them.
#pragma once

#include <chrono>
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
  enum class Length { kShort, kLong };
  // None of these may throw.
  struct Text {
    std::function<void()> work;
    std::function<void()> refuse;  // in place of it, where it still waits at the end
  };

  // `num_threads` for short texts, and one for long ones; so many may wait for each.
  TextWorkers(int num_threads, std::size_t max_waiting);
  ~TextWorkers();  // what waits is refused; what is worked on is waited for
  TextWorkers(const TextWorkers&) = delete;
  TextWorkers& operator=(const TextWorkers&) = delete;

  // False where too many of that length wait already, and at the end.
  bool post(Length length, Text text);
  // Refuses what waits, on this thread, and all that comes.
  void refuse_rest();
  // The same; then whether nothing is worked on any more, for which it waits so long at most.
  bool end_within(std::chrono::milliseconds time);

 private:
  struct Queue {
    std::deque<Text> waiting;
    std::condition_variable changed;
  };
  void run(Queue& queue);
  Queue& queue_of(Length length) { return length == Length::kLong ? long_ : short_; }

  std::size_t max_waiting_;
  std::mutex mutex_;
  Queue short_, long_;
  std::size_t num_busy_ = 0;  // threads at work
  std::condition_variable idle_;
  bool ending_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace stretto
