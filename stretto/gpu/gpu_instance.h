// A program made ready to run on the GPUs of a world: one kernel, generated and compiled once in a
// process, loaded on every local rank, with its own signals, buffers and epochs.
//
// Before: compiler.h lowered and proved the program. After: launch/executable.h, through which
// whoever launches it comes here. The CPU's counterpart is executor/executor.h.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "stretto/compiler.h"
#include "stretto/gpu/gpu_code.h"
#include "stretto/gpu/gpu_world.h"
#include "stretto/runtime/args.h"
#include "stretto/runtime/recorder.h"

namespace stretto {

// What a rank launches on certain memory, encoded: GpuInstance::prepare makes it.
class GpuLaunch;

class GpuInstance {
 public:
  // UserError for a program that has no GPU lowering or another world size, or that needs more SMs
  // than the world has for it; InternalError where the generated kernel does not compile cleanly.
  // Collective in a world of processes, as recover() is.
  GpuInstance(GpuWorld& world, const Proved& program);
  // UserError where `code` was generated from another program.
  GpuInstance(GpuWorld& world, const Proved& program, GpuCode code);
  ~GpuInstance();
  GpuInstance(const GpuInstance&) = delete;
  GpuInstance& operator=(const GpuInstance&) = delete;

  // Enqueues one launch on every local rank's stream of the world. Fault when an earlier launch
  // aborted the world; UserError for extents that were not proved. May be captured, stream by
  // stream, between begin_capture and end_capture. On several streams of a rank, kernels that wait
  // for other ranks come after those that leave no room for them; they are launched in the same
  // order on all ranks (GpuWorld::admit says when it is a UserError). UserError, too, for the
  // second launch in one graph whose copy engines fetch (engine_queues.h).
  void launch(const Args& args, std::span<const std::int64_t> extents);
  // The same on some local ranks, ascending, on streams of the caller's. Ranks of one
  // process whose copy engines fetch are launched in one call: what one of them fetches may come to
  // wait on the other's GPU before a kernel that is enqueued later (engine_queues.h).
  void launch(const Args& args, std::span<const std::int64_t> extents,
              std::span<const RankStream> on);
  void launch(const Args& args, std::span<const std::int64_t> extents, int rank,
              const cuda::Stream& stream);

  // Launches of one rank on these places. Found again where it is among the last kMostPrepared of
  // its rank; then, and whenever it is run with extents that it knows, nothing is encoded and
  // nothing is allocated. launch() does both. UserError for places that the program cannot use.
  static constexpr std::size_t kMostPrepared = 64, kMostExtents = 16;  // of a prepared launch
  std::shared_ptr<GpuLaunch> prepare(const Args& args, int rank);
  void run(GpuLaunch& launch, std::span<const std::int64_t> extents, const cuda::Stream& stream);
  // Those of some local ranks, ascending, in one call.
  struct RankLaunch {
    GpuLaunch* launch = nullptr;
    const cuda::Stream* stream = nullptr;
  };
  void run(std::span<const RankLaunch> launches, std::span<const std::int64_t> extents);
  // Tensor maps encoded so far.
  std::int64_t num_encoded() const;
  // From the second run on, what a launch with copy engines enqueues is one graph, made once for
  // the same memory and extents: dozens of calls become one. Only engines that send: others do not
  // get on in graphs (docs/decisions/0008-own-signals-come-from-peers.md). Making the graph may
  // wait for what runs on the GPU, so ranks of one process leave it off unless one thread launches
  // all. Off at first, and wherever CUDA_DEVICE_MAX_CONNECTIONS is set.
  void replay_copies(bool on);
  // What its kernel takes of SMs while it waits for other ranks; nothing where it waits for none.
  std::optional<SmDemand> waiting() const;
  // Waits for all local ranks. Fault when a wait of this or another instance was aborted.
  void wait();
  // With all ranks idle, after World::clear_fault: signals, epochs and packets start anew.
  void recover();

  // Of an instance whose code was built to record, with all ranks idle; off at first. Launches from
  // now on leave timestamps of their tiles, waits and notifies on the devices.
  void set_recording(bool on);
  bool records() const;  // whether the code was built to
  // After wait(): moves them into `recorder`, in its clock. Returns by how much the clocks of two
  // ranks may differ, in ns. Tiles end when their stores are on the way, not when they have
  // arrived; what copy engines do is seen of launches that were not captured.
  std::int64_t collect(Recorder& recorder);

  const Program& program() const;     // at schedule level
  const std::string& source() const;  // of the kernel
  double compile_seconds() const;
  bool from_cache() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace stretto
