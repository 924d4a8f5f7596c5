// Ranks as GPUs of one process: one device and one stream per rank, memory that every rank can
// address, the words through which a stalled wait is noticed everywhere, and the ledger of SMs by
// which kernels that wait for each other across ranks never wait for SMs as well.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "stretto/abi/fault_record.h"
#include "stretto/base/errors.h"
#include "stretto/gpu/sm_ledger.h"
#include "stretto/runtime/cuda/device.h"
#include "stretto/runtime/cuda/stream.h"

namespace stretto {

using cuda::CUdeviceptr;

struct GpuWorldOptions {
  int size = 1;
  std::chrono::milliseconds timeout{0};  // 0: STRETTO_TIMEOUT_MS
  // Of each GPU, left to waiting kernels that are not launched through this world (NCCL's, say, on
  // streams of their own). Instances that need more than the rest are refused.
  int reserved_sms = 0;
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
  // UserError where reserved_sms leaves nothing.
  explicit GpuWorld(const GpuWorldOptions& options);
  ~GpuWorld();
  GpuWorld(const GpuWorld&) = delete;
  GpuWorld& operator=(const GpuWorld&) = delete;

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
  int add_fault_source(std::string name, DescribeFault describe);
  void remove_fault_source(int id);
  [[noreturn]] void throw_fault() const;
  // After a fault, with all ranks idle: the next launches start anew, in whatever order. Instances
  // zero their own words.
  void clear_fault();

  // SMs of each GPU that kernels which wait for other ranks may take.
  int sms_for_waiting() const;
  // Before such a kernel of fault source `id` goes onto `stream`, a stream of `rank`: it is made to
  // come after kernels that leave no room for it (sm_ledger.h). One thread at a time per rank.
  // UserError where another rank has launched something else in its place (what it launched may
  // then be launched here), or where a capture cannot express the order. Replays of graphs are not
  // seen: those of one rank belong on one stream, or are ordered by their caller. Nor is the order
  // of captured launches compared.
  void admit(int id, int rank, const SmDemand& demand, const cuda::Stream& stream);

 private:
  struct Admission;
  struct FaultSource {
    std::string name;
    DescribeFault describe;
  };
  std::string name_of(int fault_source) const;

  static constexpr std::size_t kFaultOffset = 64;
  std::vector<cuda::Device> devices_;
  std::vector<cuda::Stream> streams_;
  std::unique_ptr<cuda::HostMappedMemory> shared_;
  std::chrono::nanoseconds timeout_;
  std::map<int, FaultSource> fault_sources_;
  int next_fault_source_ = 0;
  std::unique_ptr<Admission> admission_;
};

}  // namespace stretto
