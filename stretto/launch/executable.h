// A proved program, loaded on what it runs on, and its launches: the last two steps of the front
// door (compiler.h). One interface, whether a rank is a CPU or a GPU; what differs is beneath it,
// in executor/executor.h and gpu/gpu_instance.h.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "stretto/compiler.h"
#include "stretto/executor/executor.h"
#include "stretto/gpu/gpu_code.h"
#include "stretto/gpu/gpu_world.h"
#include "stretto/runtime/args.h"
#include "stretto/runtime/recorder.h"

namespace stretto {

// GPUs' memory as Args name it.
SymmetricBuffer on_gpus(std::string name, const SymmetricGpuMemory& memory);

// Launches on certain memory: one CPU rank's, or those of all GPUs of this process. It is valid as
// long as its Executable.
class Launch {
 public:
  Launch() = default;
  virtual ~Launch() = default;
  Launch(const Launch&) = delete;
  Launch& operator=(const Launch&) = delete;

  // Collective, as each launch is, with extents and scalars in declaration order. On CPU ranks
  // returns when the rank's part has ended. On GPUs enqueues one launch on every local rank's
  // stream of the world, and returns. With extents that it has been run with nothing is allocated,
  // and nothing encoded. UserError for extents that were not proved, Fault for a world that has
  // stopped.
  virtual void run(std::span<const std::int64_t> extents) = 0;
  // For GPUs: does the same on some local ranks, ascending, on the caller's streams. It may be
  // captured, stream by stream, between begin_capture and end_capture. Kernels on several streams
  // of a rank that wait for other ranks come after those that leave no room for them, and are
  // launched in one order on all ranks (GpuWorld::admit has the UserError). UserError, too, for
  // the second launch in one graph whose copy engines fetch. Ranks of one process whose copy
  // engines fetch are launched in one call: what one of them fetches may come to wait on the
  // other's GPU before a kernel that is enqueued later (gpu/engine_queues.h).
  virtual void run(std::span<const std::int64_t> extents, std::span<const RankStream> on) = 0;
  void run(std::span<const std::int64_t> extents, int rank, const cuda::Stream& stream) {
    const RankStream on{rank, &stream};
    run(extents, {&on, 1});
  }
};

class Executable {
 public:
  Executable() = default;
  virtual ~Executable() = default;
  Executable(const Executable&) = delete;
  Executable& operator=(const Executable&) = delete;

  // Finds again what it made for the same places, the last kMostPrepared of them, and then
  // allocates nothing.
  // UserError for places that the program cannot use; on CPU ranks some are seen only by run().
  static constexpr std::size_t kMostPrepared = 64;
  virtual std::shared_ptr<Launch> prepare(const Args& args) = 0;
  virtual const Program& program() const = 0;  // at schedule level

  // On GPUs; CPU ranks do these things with their world, and nothing here.
  // Returns when all local ranks are done. Fault when a wait of this or another program was
  // aborted.
  virtual void wait() {}
  // With all ranks idle, collective, after GpuWorld::clear_fault: signals, epochs and packets start
  // anew.
  virtual void recover() {}
  // From the second run on, what a launch with copy engines that send enqueues is one graph
  // (GpuInstance::replay_copies says when that is wise). Off at first.
  virtual void replay_copies(bool /*on*/) {}
  // What its kernels take of SMs while they wait for other ranks, for GpuLedger::admit; nothing
  // where they wait for none.
  virtual std::optional<SmDemand> waiting() const { return std::nullopt; }
  // For code that was generated to record, with all ranks idle; off at first. Launches from now on
  // leave timestamps of their tiles, waits and notifies on the devices. Other code records none.
  virtual void set_recording(bool /*on*/) {}
  // After wait(): moves them into `recorder`, in its clock. Returns by how much the clocks of two
  // ranks may differ, in ns.
  virtual std::int64_t collect(Recorder& /*recorder*/) { return 0; }
};

// Loads on one CPU rank; collective. `rank` outlives what is returned.
std::unique_ptr<Executable> load(const Proved& program, Rank& rank,
                                 const InstanceOptions& options = {});
// Loads on all GPUs of this process. UserError for code of another program than the one that was
// proved, and for a program that is written for another number of ranks, was proved for GPUs with
// another number of SMs, or needs more of them than the world has for it. Collective in a world of
// processes.
std::unique_ptr<Executable> load(const Proved& program, GpuWorld& world, GpuCode code);

}  // namespace stretto
