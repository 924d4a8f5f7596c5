#include "stretto/runtime/atomic_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <system_error>
#include <utility>

#include "stretto/base/errors.h"
#include "stretto/base/printable.h"

namespace stretto {
namespace fs = std::filesystem;

AtomicFile::AtomicFile(const fs::path& path) : path_(path), target_(path) {
  std::error_code error;
  fs::file_status status = fs::status(path, error);
  if (fs::is_directory(status)) fail(EISDIR);
  int flags = O_WRONLY | O_CLOEXEC;
  if (!fs::exists(status) || fs::is_regular_file(status)) {
    // Renaming onto a symbolic link would replace the link.
    if (fs::is_symlink(path, error)) target_ = fs::weakly_canonical(path, error);
    auto unique = std::chrono::steady_clock::now().time_since_epoch().count();
    temporary_ = target_.parent_path() / fmt::format(".stretto-{}-{}", getpid(), unique);
    flags |= O_CREAT | O_EXCL;
  }
  const fs::path& opened = temporary_.empty() ? target_ : temporary_;
  fd_ = open(opened.c_str(), flags, 0666);
  if (fd_ < 0) fail(errno);
}

AtomicFile::~AtomicFile() {
  if (fd_ >= 0) close(fd_);
  if (!temporary_.empty()) unlink(temporary_.c_str());
}

void AtomicFile::write(std::string_view bytes) {
  while (!bytes.empty()) {
    ssize_t written = ::write(fd_, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail(errno);
    bytes.remove_prefix(static_cast<std::size_t>(written));
  }
}

void AtomicFile::commit() {
  int fd = std::exchange(fd_, -1);
  if (close(fd) != 0 && errno != EINTR) fail(errno);
  if (temporary_.empty()) return;
  if (std::rename(temporary_.c_str(), target_.c_str()) != 0) fail(errno);
  temporary_.clear();
}

void AtomicFile::fail(int error) const {
  throw UserError(fmt::format("{}: cannot be written: {}", printable(path_.string(), 300),
                              std::generic_category().message(error)));
}

void check_writable(const fs::path& path) { AtomicFile opened_and_removed(path); }

}  // namespace stretto
