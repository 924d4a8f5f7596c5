// A proved program on all GPUs of this process at once, for whoever launches it on them in one
// call: benchmarks, the steps of models, what runs cases on GPUs. The same three steps as
// executable.h has for one rank: load, prepare, run.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "stretto/compiler.h"
#include "stretto/gpu/gpu_code.h"
#include "stretto/gpu/gpu_launch_args.h"
#include "stretto/gpu/gpu_world.h"
#include "stretto/runtime/recorder.h"

namespace stretto {

class GpuInstance;  // gpu/gpu_instance.h, which nobody else needs
class GpuLaunch;

// A launch of every local rank on certain memory. Valid as long as its GpuExecutable.
class GpuLaunches {
 public:
  // Enqueues one launch on every local rank's stream of the world. Fault when an earlier launch
  // aborted the world; UserError for extents that were not proved. May be captured, stream by
  // stream, between begin_capture and end_capture. On several streams of a rank, kernels that wait
  // for other ranks come after those that leave no room for them; they are launched in the same
  // order on all ranks (GpuWorld::admit says when it is a UserError). UserError, too, for the
  // second launch in one graph whose copy engines fetch (gpu/engine_queues.h). With extents that
  // it has been run with nothing is encoded, and nothing allocated.
  void run(std::span<const std::int64_t> extents);
  // The same on some local ranks, ascending, on streams of the caller's. Ranks of one process whose
  // copy engines fetch are launched in one call: what one of them fetches may come to wait on the
  // other's GPU before a kernel that is enqueued later (gpu/engine_queues.h).
  void run(std::span<const std::int64_t> extents, std::span<const RankStream> on);
  void run(std::span<const std::int64_t> extents, int rank, const cuda::Stream& stream);

 private:
  friend class GpuExecutable;
  using OfRanks = std::vector<std::shared_ptr<GpuLaunch>>;  // [local rank]
  GpuLaunches(GpuInstance& instance, const GpuWorld& world, OfRanks launches);
  GpuInstance& instance_;
  const GpuWorld& world_;
  OfRanks launches_;
};

class GpuExecutable {
 public:
  ~GpuExecutable();
  GpuExecutable(const GpuExecutable&) = delete;
  GpuExecutable& operator=(const GpuExecutable&) = delete;

  // On these addresses, scalars' places and starts_early; the extents in `args` count for nothing.
  // Finds again what it made for the same, the last kMostPrepared of them, and then allocates
  // nothing. UserError for places that the program cannot use.
  static constexpr std::size_t kMostPrepared = 64;
  std::shared_ptr<GpuLaunches> prepare(const GpuLaunchArgs& args);

  // Waits for all local ranks. Fault when a wait of this or another program gave up.
  void wait();
  // With all ranks idle, after GpuWorld::clear_fault: signals, epochs and packets start anew.
  void recover();
  // From the second run on, what a launch with copy engines that send enqueues is one graph
  // (GpuInstance::replay_copies says when that is wise). Off at first.
  void replay_copies(bool on);

  // Of code that was generated to record, with all ranks idle; off at first. Launches from now on
  // leave timestamps of their tiles, waits and notifies on the devices.
  void set_recording(bool on);
  // After wait(): moves them into `recorder`, in its clock. Returns by how much the clocks of two
  // ranks may differ, in ns.
  std::int64_t collect(Recorder& recorder);

  const Program& program() const;  // at schedule level

 private:
  friend std::unique_ptr<GpuExecutable> load_on_all(const Proved& program, GpuWorld& world,
                                                    GpuCode code);
  GpuExecutable(const Proved& program, GpuWorld& world, GpuCode code);
  const GpuWorld& world_;
  std::unique_ptr<GpuInstance> instance_;
  std::vector<std::shared_ptr<GpuLaunches>> made_;  // the last used first
};

// `code` is that of `program`. UserError for a program that is written for another number of ranks,
// was proved for GPUs of another number of SMs, or needs more of them than the world has for it.
// Collective in a world of processes, as recover() is.
std::unique_ptr<GpuExecutable> load_on_all(const Proved& program, GpuWorld& world, GpuCode code);

}  // namespace stretto
