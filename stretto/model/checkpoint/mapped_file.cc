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
  ~Descriptor() { ::close(fd_); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }

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
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

MappedFile::MappedFile(MappedFile&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(bytes_, other.bytes_);
  return *this;
}

}  // namespace stretto
