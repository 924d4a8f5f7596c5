#include "stretto/server/access_log.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace stretto {
namespace {

constexpr std::size_t kMostWaiting = 10'000;
constexpr std::chrono::seconds kLastWords{1};

// Not through stdio, whose lock a write that is stuck would keep from everybody else.
void write_line(const std::string& line) {
  const std::string text = line + '\n';
  for (std::size_t from = 0; from < text.size();) {
    ssize_t count = ::write(STDERR_FILENO, text.data() + from, text.size() - from);
    if (count < 0 && errno != EINTR) return;  // nobody hears of it
    if (count > 0) from += static_cast<std::size_t>(count);
  }
}

}  // namespace

struct AccessLog::State {
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<std::string> waiting;
  std::uint64_t num_lost = 0;
  bool stopping = false, done = false;

  void run() {
    std::unique_lock lock(mutex);
    for (;;) {
      changed.wait(lock, [&] { return stopping || !waiting.empty(); });
      if (waiting.empty()) break;
      std::vector<std::string> lines = std::exchange(waiting, {});
      std::uint64_t lost = std::exchange(num_lost, 0);
      lock.unlock();
      if (lost > 0) lines.push_back(fmt::format("{{\"lost_log_lines\":{}}}", lost));
      for (const std::string& line : lines) write_line(line);
      lock.lock();
    }
    done = true;
    changed.notify_all();
  }
};

AccessLog::AccessLog() : state_(std::make_shared<State>()) {
  std::thread([state = state_] { state->run(); }).detach();
}

AccessLog::~AccessLog() { end(); }

void AccessLog::end() {
  std::unique_lock lock(state_->mutex);
  state_->stopping = true;
  state_->changed.notify_all();
  state_->changed.wait_for(lock, kLastWords, [&] { return state_->done; });
}

void AccessLog::add(std::string line) {
  std::lock_guard lock(state_->mutex);
  if (state_->waiting.size() >= kMostWaiting) {
    ++state_->num_lost;
    return;
  }
  state_->waiting.push_back(std::move(line));
  state_->changed.notify_all();
}

}  // namespace stretto
