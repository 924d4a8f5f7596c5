// Ranks as GPUs: one device and one stream per rank, memory that every rank can address, the words
// through which a stalled wait is noticed everywhere, and the ledger of SMs by which kernels that
// wait for each other across ranks never wait for SMs as well. Either all ranks are of this
// process, or one is, over a world of processes (runtime/world.h); who uses a GpuWorld loops over
// local_ranks() and sees no other difference, but that what is called collective below is called by
// all processes, in the same order.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "stretto/abi/fault_record.h"
#include "stretto/base/errors.h"
#include "stretto/gpu/gpu_ledger.h"
#include "stretto/ir/gpu_target.h"
#include "stretto/runtime/cuda/device.h"
#include "stretto/runtime/cuda/stream.h"
#include "stretto/runtime/world.h"

namespace stretto {

using cuda::CUdeviceptr;

struct GpuWorldOptions {
  int size = 1;
  std::chrono::milliseconds timeout{0};  // 0: STRETTO_TIMEOUT_MS
  // SMs of each GPU left to waiting kernels that are not launched through this world (NCCL's, say,
  // on streams of their own). Instances that need more than the rest are refused.
  int reserved_sms = 0;
};

struct GpuProcessOptions {
  int device = -1;             // this process's; -1: LOCAL_RANK, or else the rank
  bool share_devices = false;  // two ranks may be on one GPU: their kernels then take turns
  std::chrono::milliseconds timeout{0};  // 0: the ranks' world's
  int reserved_sms = 0;                  // as above
  // That of another world of this process: kernels of both then leave each other room, where they
  // are on the same GPU. Null: none.
  std::shared_ptr<GpuLedger> ledger;
};

// Memory of the same size on every rank, at the addresses at which this process sees it.
struct SymmetricGpuMemory {
  std::vector<cuda::DeviceMemory> on;  // [rank]
  std::vector<CUdeviceptr> addresses() const;
};

// Where one rank launches.
struct RankStream {
  int rank = 0;
  const cuda::Stream* stream = nullptr;
};

class GpuWorld {
 public:
  // Takes devices 0 .. size - 1. DeviceError where there are fewer, one is not Hopper, or two
  // cannot address each other's memory.
  // UserError where reserved_sms leaves nothing.
  explicit GpuWorld(const GpuWorldOptions& options);
  // One rank's GPU in a world of processes; collective. `rank` outlives this. Whoever waits on a
  // GPU for a process that has died hears that at once. DeviceError as above, UserError where two
  // ranks share a GPU and may not: both on every rank. UserError for a world of threads.
  GpuWorld(Rank& rank, const GpuProcessOptions& options);
  ~GpuWorld();
  GpuWorld(const GpuWorld&) = delete;
  GpuWorld& operator=(const GpuWorld&) = delete;

  int size() const { return size_; }
  // They ascend without gaps. Only these have a device and a stream here.
  const std::vector<int>& local_ranks() const { return local_ranks_; }
  std::size_t local_index(int rank) const;  // in local_ranks(); InternalError for others
  const cuda::Device& device(int rank) const { return devices_[local_index(rank)]; }
  const cuda::Stream& stream(int rank) const { return streams_[local_index(rank)]; }
  std::vector<RankStream> local_streams() const;
  // What to prove and to generate for here: the first local rank's GPU. Programs that are proved
  // for it are refused by a GPU that has another number of SMs.
  GpuTarget target() const;
  std::chrono::nanoseconds timeout() const { return timeout_; }

  // Collective: UserError on every rank where sizes differ or one has no memory.
  SymmetricGpuMemory allocate(std::size_t bytes) const;
  // Returns when the local streams are idle.
  void synchronize() const;
  // Returns when all ranks' streams are, and what they have written can be read: collective. Fault
  // where a process does not come.
  void meet() const;
  // Enqueues a meeting on the local streams: what comes after it begins once the streams of all
  // ranks have got there, within a microsecond or two. Collective, and never captured. Streams get
  // past it, too, when the world is aborted.
  void meet_on_streams() const;
  // Returns what every process passes, in the order of their ranks, all of the same size:
  // collective. In one process that is what it passes itself.
  std::vector<std::vector<std::byte>> exchange(std::span<const std::byte> own) const;

  // As kernels see them. The abort word and the fault record are shared by all ranks.
  CUdeviceptr abort_word() const { return shared_address_; }
  CUdeviceptr fault_record() const { return shared_address_ + kFaultOffset; }
  // What the first aborted wait left; ready == 0 where none did.
  DeviceFault fault() const;
  bool aborted() const;
  // Ends the waits of kernels on every rank.
  void abort() const;

  // Whoever launches kernels here registers, so that a fault is told in the words of the program
  // that stalled, whoever notices it: kernels put `rank + kFaultSources * id` in DeviceFault::rank.
  using DescribeFault = std::function<FaultRecord(const DeviceFault&)>;
  static constexpr int kFaultSources = 256;
  int add_fault_source(std::string name, DescribeFault describe);
  void remove_fault_source(int id);
  [[noreturn]] void throw_fault() const;
  // Lets launches start anew after a fault, in whatever order. All ranks are idle.
  // Instances zero their own words. Collective; a world of processes calls World::recover() before.
  void clear_fault();

  // SMs of each GPU that kernels which wait for other ranks may take.
  int sms_for_waiting() const;
  std::shared_ptr<GpuLedger> ledger(int rank) const;  // for another world on the GPU of `rank`
  // Before such a kernel of fault source `id` goes onto `stream`, a stream of `rank`: it is made to
  // come after kernels that leave no room for it (sm_ledger.h). One thread at a time per rank; what
  // is returned is held until the kernel is enqueued, which keeps other worlds' launches out.
  // UserError where another rank has launched something else in its place (what it launched may
  // then be launched here), or where a capture cannot express the order. Replays of graphs are not
  // seen: those of one rank belong on one stream, or are ordered by their caller. Nor is the order
  // of captured launches compared, or that of ranks of different processes: those wait for each
  // other until the deadline.
  [[nodiscard]] std::unique_lock<std::mutex> admit(int id, int rank, const SmDemand& demand,
                                                   const cuda::Stream& stream);

 private:
  struct Admission;
  struct Processes;
  struct FaultSource {
    std::string name;
    DescribeFault describe;
  };
  std::string name_of(int fault_source) const;
  void add_device(int ordinal);

  static constexpr std::size_t kFaultOffset = 64, kMeetingsOffset = 256;
  static constexpr std::size_t kSharedBytes = kMeetingsOffset + 8 * World::kMaxWorldSize;
  int size_;
  std::vector<int> local_ranks_;
  std::vector<cuda::Device> devices_;  // [local_ranks()], as what follows
  std::vector<cuda::Stream> streams_;
  std::vector<cuda::Event> met_;
  std::unique_ptr<cuda::HostMappedMemory> own_words_;  // in one process
  std::unique_ptr<Processes> processes_;               // in a world of processes
  // In host memory: the abort word, the fault record, and how many meetings each rank's stream has
  // come to in a world of processes.
  std::byte* shared_ = nullptr;
  CUdeviceptr shared_address_ = 0;
  std::chrono::nanoseconds timeout_;
  std::map<int, FaultSource> fault_sources_;
  int next_fault_source_ = 0;
  std::unique_ptr<Admission> admission_;
};

}  // namespace stretto
