// One rank's share of memory at the same offset on every rank, on the host or on its GPU; freed
// with the last owner.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "session.h"

namespace stretto::python {

enum class MemoryKind { kHost, kGpu };

class SymmetricMemory {
 public:
  // Collective; zeroed. Errors as Rank::allocate and GpuSide::allocate. On GPUs after
  // Session::open_gpu().
  SymmetricMemory(std::shared_ptr<Session> session, int rank, const std::string& name,
                  MemoryKind place, std::size_t bytes);
  ~SymmetricMemory();
  SymmetricMemory(const SymmetricMemory&) = delete;
  SymmetricMemory& operator=(const SymmetricMemory&) = delete;

  bool is_on_gpu() const { return device_ >= 0; }
  int device() const { return device_; }  // -1: the host
  std::byte* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }
  std::uint64_t number() const { return number_; }  // the same on every rank (Session::add_memory)
  const SymmetricBuffer& buffer() const { return buffer_; }

 private:
  std::shared_ptr<Session> session_;
  Rank& rank_;
  SymmetricBuffer buffer_;
  SymmetricGpuMemory on_gpus_;
  int device_ = -1;
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
  std::uint64_t number_ = 0;
};

}  // namespace stretto::python
