#include "stretto/server/text_workers.h"

#include <utility>

#include "stretto/base/threads.h"

namespace stretto {

TextWorkers::TextWorkers(int num_threads, std::size_t max_waiting) : max_waiting_(max_waiting) {
  try {
    for (int i = 0; i < num_threads; ++i) {
      threads_.push_back(start_thread("texts of requests", [this] { run(); }));
    }
  } catch (...) {
    stop();
    throw;
  }
}

TextWorkers::~TextWorkers() { stop(); }

void TextWorkers::stop() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
  }
  for (std::thread& thread : threads_) thread.join();
}

bool TextWorkers::post(std::function<void()> work) {
  std::lock_guard lock(mutex_);
  if (waiting_.size() >= max_waiting_) return false;
  waiting_.push_back(std::move(work));
  changed_.notify_one();
  return true;
}

void TextWorkers::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return stopping_ || !waiting_.empty(); });
    if (stopping_) return;
    std::function<void()> work = std::move(waiting_.front());
    waiting_.pop_front();
    lock.unlock();
    work();
    work = nullptr;
    lock.lock();
  }
}

}  // namespace stretto
