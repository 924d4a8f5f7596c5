#include "stretto/base/turn.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <thread>

#include "stretto/base/interrupts.h"

namespace stretto {

// Unlocked in so many words, since a child of fork() may have the file open too.
Turn::~Turn() {
  if (fd_ < 0) return;
  if (holds_) ::unlink(path_.c_str());
  ::flock(fd_, LOCK_UN);
  ::close(fd_);
}

Turn::Status Turn::ask() {
  if (fd_ < 0) fd_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
  if (fd_ < 0) return Status::kWithoutLocks;
  while (::flock(fd_, LOCK_EX | LOCK_NB) != 0) {
    if (errno == EINTR) continue;
    if (errno == EWOULDBLOCK) return Status::kTaken;
    ::unlink(path_.c_str());  // or it would stay for ever
    return Status::kWithoutLocks;
  }
  struct stat opened = {}, there = {};
  if (::fstat(fd_, &opened) != 0) return Status::kWithoutLocks;
  holds_ = ::stat(path_.c_str(), &there) == 0 && opened.st_ino == there.st_ino &&
           opened.st_dev == there.st_dev;
  if (!holds_) {
    ::flock(fd_, LOCK_UN);  // nobody is to wait for what this one does
    return Status::kOver;
  }
  write(fmt::format("process {}", getpid()));  // for whoever waits too long
  return Status::kMine;
}

std::string Turn::read() const {
  std::string text;
  char part[4096];
  for (ssize_t n; (n = ::pread(fd_, part, sizeof part, static_cast<off_t>(text.size()))) > 0;) {
    text.append(part, static_cast<std::size_t>(n));
  }
  return text;
}

void Turn::write(std::string_view text) {
  struct stat before = {};
  if (!holds_ || ::fstat(fd_, &before) != 0) return;
  // Not for nothing: ext4 sends what was truncated to the disk when it is closed.
  if (before.st_size > 0 && ::ftruncate(fd_, 0) != 0) return;
  for (std::size_t done = 0; done < text.size();) {
    ssize_t n = ::pwrite(fd_, text.data() + done, text.size() - done, static_cast<off_t>(done));
    if (n <= 0) return;
    done += static_cast<std::size_t>(n);
  }
}

bool TurnPauses::wait() {
  constexpr std::chrono::milliseconds kLongest{10};
  if (std::chrono::steady_clock::now() > deadline_) return false;
  Interrupts::look();
  std::this_thread::sleep_for(next_);
  next_ = std::min(2 * next_, kLongest);
  return true;
}

}  // namespace stretto
