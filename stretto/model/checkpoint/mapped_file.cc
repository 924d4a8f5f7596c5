#include "stretto/model/checkpoint/mapped_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "stretto/base/downloaded_file.h"
#include "stretto/base/errors.h"

namespace stretto {
namespace {

[[noreturn]] void fail(const std::filesystem::path& path, const char* what) {
  throw UserError(fmt::format("{}: {}: {}", path.string(), what, std::strerror(errno)));
}

class Descriptor {
 public:
  // O_NONBLOCK: opening a FIFO must not wait for a writer. It has no effect on regular files.
  explicit Descriptor(const std::filesystem::path& path)
      : fd_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {
    if (fd_ < 0) fail(path, "cannot be opened for reading");
  }
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }
  int release() { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

}  // namespace

MappedFile::MappedFile(const std::filesystem::path& path) {
  check_regular_file(path);
  Descriptor file(path);
  struct stat status = {};
  if (::fstat(file.get(), &status) != 0) fail(path, "cannot be examined");
  if (!S_ISREG(status.st_mode)) {
    throw UserError(fmt::format("{}: is not a regular file", path.string()));
  }
  if (status.st_size == 0) return;  // an empty mapping is not allowed
  auto size = static_cast<std::size_t>(status.st_size);
  void* address = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.get(), 0);
  if (address == MAP_FAILED) fail(path, "cannot be mapped into memory");
  bytes_ = {static_cast<const std::byte*>(address), size};
  modified_ = status.st_mtim;
  fd_ = file.release();
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
  if (fd_ >= 0) ::close(fd_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : bytes_(std::exchange(other.bytes_, {})),
      fd_(std::exchange(other.fd_, -1)),
      modified_(other.modified_) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(bytes_, other.bytes_);
  std::swap(fd_, other.fd_);
  std::swap(modified_, other.modified_);
  return *this;
}

void MappedFile::check_unchanged(const std::filesystem::path& path) const {
  if (fd_ < 0) return;  // empty
  struct stat now = {};
  if (::fstat(fd_, &now) != 0) fail(path, "cannot be examined");
  if (static_cast<std::size_t>(now.st_size) < bytes_.size()) {
    throw UserError(fmt::format("{}: was cut short while it was in use, from {} bytes to {}",
                                path.string(), bytes_.size(), now.st_size));
  }
  if (now.st_mtim.tv_sec != modified_.tv_sec || now.st_mtim.tv_nsec != modified_.tv_nsec) {
    throw UserError(fmt::format("{}: was written to while it was in use", path.string()));
  }
}

}  // namespace stretto
