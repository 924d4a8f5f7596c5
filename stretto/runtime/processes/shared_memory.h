// Memory that processes share without a name on disk: it goes with the last process that maps it,
// however that process ends. Passed on as a file descriptor (peers.h).
#pragma once

#include <cstddef>
#include <string>

#include "stretto/runtime/processes/fd.h"

namespace stretto {

class SharedMemory {
 public:
  SharedMemory() = default;
  // Zeroed pages, of a size that nobody can change any more. UserError where the machine has not
  // that much memory. `name` is what /proc shows.
  static SharedMemory create(const std::string& name, std::size_t bytes);
  // Maps what another process has created. InternalError where the descriptor is something else or
  // has another size; UserError where the address space is full.
  static SharedMemory open(Fd memory, std::size_t bytes);
  SharedMemory(SharedMemory&& other) noexcept;
  SharedMemory& operator=(SharedMemory&& other) noexcept;
  ~SharedMemory();

  std::byte* data() const { return data_; }  // page-aligned
  int fd() const { return fd_.get(); }
  void close_fd() { fd_.reset(); }  // the mapping stays

 private:
  SharedMemory(Fd fd, std::size_t bytes);

  Fd fd_;
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace stretto
