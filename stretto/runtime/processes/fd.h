// A file descriptor that closes itself, and how long calls on it may wait.
#pragma once

#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "stretto/base/errors.h"
#include "stretto/base/interrupts.h"

namespace stretto {

class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Fd() { reset(); }

  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  int release() { return std::exchange(fd_, -1); }
  void reset() {
    if (fd_ >= 0) ::close(fd_);
    fd_ = -1;
  }

 private:
  int fd_ = -1;
};

// Refuses a call that makes a descriptor, or what only the number of them keeps from coming.
[[noreturn]] inline void refuse_descriptor(const std::string& what, int error) {
  throw UserError(fmt::format("no descriptor left for {}: {} (ulimit -n)", what,
                              std::strerror(error)));
}
inline bool too_many_descriptors(int error) { return error == EMFILE || error == ENFILE; }

// poll() of those that are open: the system refuses more entries than a process may have
// descriptors, also where they are none.
inline int poll_open(std::vector<pollfd>& all, int timeout) {
  std::vector<pollfd> open;
  for (const pollfd& one : all) {
    if (one.fd >= 0) open.push_back(one);
  }
  int ready = ::poll(open.data(), open.size(), timeout);
  auto next = open.begin();
  for (pollfd& one : all) one.revents = one.fd >= 0 ? (next++)->revents : short{0};
  return ready;
}

using Deadline = std::chrono::steady_clock::time_point;

inline Deadline deadline_in(std::chrono::milliseconds time) {
  return std::chrono::steady_clock::now() + time;
}

// For poll(): 0 when the deadline has passed, else rounded up, at most so long that the caller
// comes again to look whether it is interrupted.
inline int ms_until(Deadline deadline) {
  Interrupts::look();
  auto left =
      std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
  return static_cast<int>(std::clamp<long long>(left.count(), 0, Interrupts::kEvery.count()));
}

}  // namespace stretto
