// The copy engines' part of a launch: a stream for each queue of each rank, and the words through
// which kernels and queues tell each other how far they are (codegen/copy_engine_plan.h).
//
// gpu_instance.h calls begin(), launches the gate, calls fork(kGate), launches the main kernel, and
// calls fork(kRoles) and, last, join(); each for all ranks that it launches before the next. A
// queue's first step awaits a bell that the gate rings, so nothing but these two kernels is in the
// stream, and one may begin beside the other. Each kernel is enqueued before what awaits it: it
// begins also where the driver puts all streams into one hardware queue
// (CUDA_DEVICE_MAX_CONNECTIONS=1, as Megatron asks for). That a copy that fetches takes a place in
// a hardware queue of the GPU that it reads is what would explain the fetches that waited in vain
// (docs/decisions/0008-own-signals-come-from-peers.md): then it must not come before a kernel there
// that it waits for.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "stretto/codegen/launch_plan.h"
#include "stretto/gpu/gpu_world.h"
#include "stretto/runtime/recorder.h"

namespace stretto {

class EngineQueues {
 public:
  // Addresses of a launch.
  struct Addresses {
    std::function<CUdeviceptr(int tensor, int rank)> tensor;
    std::function<CUdeviceptr(int rank)> signals;  // a rank's block of counters
  };

  // Both are kept by reference.
  EngineQueues(GpuWorld& world, const Program& program, const LaunchPlan& launch);
  ~EngineQueues();  // with all ranks idle

  // For the kernels' parameter.
  CUdeviceptr marks(int rank) const;
  CUdeviceptr words(int rank) const;
  CUdeviceptr words_for_peers(int rank) const;
  CUdeviceptr bells(int rank) const;
  std::int64_t num_marks(int rank) const;

  using Steps = std::vector<std::vector<EngineStep>>;  // [queue]

  // What a rank's queues do in a launch. One thread at a time per rank.
  std::shared_ptr<const Steps> steps(int rank, std::span<const std::int64_t> extents);
  // Why these may not be captured, in words: a queue copies within its rank, or signals it. Empty
  // where they may.
  std::string refused_in_graphs(const Steps& steps, int rank) const;
  // Queues come after what `main` has so far.
  void begin(int rank, const cuda::Stream& main) const;
  // Enqueues a rank's copies on the queues' own streams: of the queues that await the gate alone,
  // or of those that await roles of the main kernel, too.
  enum class Awaiting : std::uint8_t { kGate, kRoles };
  void fork(int rank, const Steps& steps, const Addresses& at, Awaiting which) const;
  // `main` goes on when the copies are done.
  void join(int rank, const cuda::Stream& main) const;

  // With all ranks idle: from now on, until it is switched off, launches that are not captured
  // leave times of their steps. `first_epochs`: of the next launch, [world.local_ranks()].
  void set_recording(bool on, const std::vector<std::int64_t>& first_epochs);
  // With all ranks idle: moves them into `recorder`. Returns how far they may be off, in ns.
  std::int64_t collect(Recorder& recorder);

  // Waits until the queues are idle.
  void drain() const;
  // With all ranks idle: as at creation.
  void zero();

 private:
  struct Queue;
  struct Rank;
  Rank& local(int rank) const { return *ranks_[world_.local_index(rank)]; }
  void enqueue(const std::vector<EngineStep>& steps, int rank, const Addresses& at,
               const cuda::Stream& stream) const;

  GpuWorld& world_;
  const Program& program_;
  const LaunchPlan& launch_;
  // What the gate of a rank writes and its queues copy into its own counters, in the memory of the
  // next rank: a copy within a device the driver might make with a kernel, for which one that holds
  // all SMs leaves no room; and copies into the own memory from there or from the host's do not get
  // on in graphs of several launches that fetch
  // (docs/decisions/0008-own-signals-come-from-peers.md).
  SymmetricGpuMemory words_;
  std::vector<std::unique_ptr<Rank>> ranks_;  // [world.local_ranks()]
};

}  // namespace stretto
