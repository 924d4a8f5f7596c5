#include "stretto/server/text_workers.h"

#include <iterator>
#include <utility>

#include "stretto/base/threads.h"

namespace stretto {

TextWorkers::TextWorkers(int num_threads, std::size_t max_waiting) : max_waiting_(max_waiting) {
  try {
    for (int i = 0; i < num_threads; ++i) {
      threads_.push_back(start_thread("texts of requests", [this] { run(short_); }));
    }
    threads_.push_back(start_thread("long texts of requests", [this] { run(long_); }));
  } catch (...) {
    refuse_rest();
    for (std::thread& thread : threads_) thread.join();
    throw;
  }
}

TextWorkers::~TextWorkers() {
  refuse_rest();
  for (std::thread& thread : threads_) thread.join();
}

bool TextWorkers::post(Length length, Text text) {
  std::lock_guard lock(mutex_);
  Queue& queue = queue_of(length);
  if (ending_ || queue.waiting.size() >= max_waiting_) return false;
  queue.waiting.push_back(std::move(text));
  queue.changed.notify_one();
  return true;
}

void TextWorkers::refuse_rest() {
  std::deque<Text> left;
  {
    std::lock_guard lock(mutex_);
    ending_ = true;
    for (Queue* queue : {&short_, &long_}) {
      std::move(queue->waiting.begin(), queue->waiting.end(), std::back_inserter(left));
      queue->waiting.clear();
      queue->changed.notify_all();
    }
  }
  for (const Text& text : left) text.refuse();
}

bool TextWorkers::end_within(std::chrono::milliseconds time) {
  refuse_rest();
  std::unique_lock lock(mutex_);
  return idle_.wait_for(lock, time, [&] { return num_busy_ == 0; });
}

void TextWorkers::run(Queue& queue) {
  std::unique_lock lock(mutex_);
  for (;;) {
    queue.changed.wait(lock, [&] { return ending_ || !queue.waiting.empty(); });
    if (ending_) return;
    Text text = std::move(queue.waiting.front());
    queue.waiting.pop_front();
    ++num_busy_;
    lock.unlock();
    text.work();
    text = {};  // what it holds may be large
    lock.lock();
    --num_busy_;
    idle_.notify_all();
  }
}

}  // namespace stretto
