#include "stretto/base/threads.h"

#include <fmt/format.h>
#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <system_error>
#include <utility>
#include <vector>

#include "stretto/base/errors.h"

namespace stretto {

std::thread start_thread(const std::string& what, std::function<void()> body) {
  try {
    std::thread thread(std::move(body));
    // For debuggers; the kernel keeps 15 characters.
    ::pthread_setname_np(thread.native_handle(), what.substr(0, 15).c_str());
    return thread;
  } catch (const std::system_error& e) {
    throw UserError(fmt::format("no thread for {}: {}", what, e.what()));
  }
}

std::size_t num_processors() { return std::max(std::thread::hardware_concurrency(), 1U); }

void side_by_side(std::size_t count, std::size_t num_threads,
                  const std::function<void(std::size_t)>& work) {
  std::atomic<std::size_t> next{0};
  std::exception_ptr error;
  std::mutex one_at_a_time;
  auto take_turns = [&] {
    try {
      for (std::size_t i = next++; i < count; i = next++) work(i);
    } catch (...) {
      next = count;
      std::lock_guard lock(one_at_a_time);
      if (error == nullptr) error = std::current_exception();
    }
  };
  {
    std::vector<std::jthread> helpers;
    try {
      for (std::size_t i = 1; i < std::min(count, num_threads); ++i) {
        helpers.emplace_back(take_turns);
      }
    } catch (const std::system_error&) {  // no more than there are
    }
    take_turns();
  }
  if (error != nullptr) std::rethrow_exception(error);
}

}  // namespace stretto
