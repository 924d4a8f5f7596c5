#include "stretto/runtime/processes/shared_memory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysinfo.h>

#include <cerrno>
#include <cstring>
#include <limits>

#include "stretto/base/errors.h"

namespace stretto {
namespace {

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

// The kernel gives out pages when they are first written, and kills a process that finds none: what
// can never fit is refused before.
void check_fits(std::size_t bytes) {
  struct sysinfo info {};
  sysinfo(&info);
  std::size_t total = info.totalram * std::size_t{info.mem_unit};
  if (bytes > total || bytes > std::size_t{std::numeric_limits<off_t>::max()}) {
    throw UserError(fmt::format("out of memory: the machine has {} bytes", total));
  }
}

[[noreturn]] void refuse(const char* call) {
  if (too_many_descriptors(errno)) refuse_descriptor("shared memory", errno);
  throw UserError(fmt::format("out of memory: {}: {}", call, std::strerror(errno)));
}

}  // namespace

SharedMemory::SharedMemory(Fd fd, std::size_t bytes) : fd_(std::move(fd)), bytes_(bytes) {
  void* at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd_.get(), 0);
  if (at == MAP_FAILED) refuse("mmap");
  data_ = static_cast<std::byte*>(at);
}

SharedMemory SharedMemory::create(const std::string& name, std::size_t bytes) {
  check_fits(bytes);
  std::string shown = "stretto " + name.substr(0, 200);
  Fd fd(::memfd_create(shown.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd) refuse("memfd_create");
  if (::ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) refuse("ftruncate");
  if (::fcntl(fd.get(), F_ADD_SEALS, kSeals) != 0) refuse("fcntl");
  return SharedMemory(std::move(fd), bytes);
}

SharedMemory SharedMemory::open(Fd memory, std::size_t bytes) {
  struct stat info {};
  STRETTO_CHECK(::fstat(memory.get(), &info) == 0 && info.st_size == static_cast<off_t>(bytes),
                "shared memory of another size");
  STRETTO_CHECK((::fcntl(memory.get(), F_GET_SEALS) & kSeals) == kSeals,
                "shared memory that can still shrink");
  return SharedMemory(std::move(memory), bytes);
}

SharedMemory::SharedMemory(SharedMemory&& other) noexcept
    : fd_(std::move(other.fd_)),
      data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)) {}

SharedMemory& SharedMemory::operator=(SharedMemory&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

SharedMemory::~SharedMemory() {
  if (data_ != nullptr) ::munmap(data_, bytes_);
}

}  // namespace stretto
