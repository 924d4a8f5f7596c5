// Ranks as GPUs of one process: one device and one stream per rank, memory that every rank can
// address, and the words through which a stalled wait is noticed everywhere.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "stretto/abi/fault_record.h"
#include "stretto/base/errors.h"
#include "stretto/runtime/cuda/device.h"
#include "stretto/runtime/cuda/stream.h"

namespace stretto {

using cuda::CUdeviceptr;

struct GpuWorldOptions {
  int size = 1;
  std::chrono::milliseconds timeout{0};  // 0: STRETTO_TIMEOUT_MS
};

// Memory of the same size on every rank.
struct SymmetricGpuMemory {
  std::vector<cuda::DeviceMemory> on;  // [rank]
  std::vector<CUdeviceptr> addresses() const;
};

class GpuWorld {
 public:
  // Devices 0 .. size - 1. DeviceError where there are fewer, one is not Hopper, or two cannot
  // address each other's memory.
  explicit GpuWorld(const GpuWorldOptions& options);

  int size() const { return static_cast<int>(devices_.size()); }
  const cuda::Device& device(int rank) const { return devices_[static_cast<std::size_t>(rank)]; }
  const cuda::Stream& stream(int rank) const { return streams_[static_cast<std::size_t>(rank)]; }
  std::chrono::nanoseconds timeout() const { return timeout_; }

  SymmetricGpuMemory allocate(std::size_t bytes) const;
  void synchronize() const;

  // As kernels see them. The abort word and the fault record are shared by all ranks.
  CUdeviceptr abort_word() const { return shared_->address(); }
  CUdeviceptr fault_record() const { return shared_->address() + kFaultOffset; }
  // What the first wait that gave up left; ready == 0 where none did.
  DeviceFault fault() const;
  bool aborted() const;

  // Whoever launches kernels here registers, so that a fault is told in the words of the program
  // that stalled, whoever notices it: kernels put `rank + kFaultSources * id` in DeviceFault::rank.
  using DescribeFault = std::function<FaultRecord(const DeviceFault&)>;
  static constexpr int kFaultSources = 256;
  int add_fault_source(DescribeFault describe);
  void remove_fault_source(int id);
  [[noreturn]] void throw_fault() const;
  // After a fault, with all ranks idle: the next launches start anew. Instances zero their own
  // words.
  void clear_fault();

 private:
  static constexpr std::size_t kFaultOffset = 64;
  std::vector<cuda::Device> devices_;
  std::vector<cuda::Stream> streams_;
  std::unique_ptr<cuda::HostMappedMemory> shared_;
  std::chrono::nanoseconds timeout_;
  std::map<int, DescribeFault> fault_sources_;
  int next_fault_source_ = 0;
};

}  // namespace stretto
