// A proved program, loaded on what it runs on, and its launches: the last two steps of the front
// door (compiler.h). One interface, whether a rank is a CPU or a GPU; what differs is beneath it,
// in executor/executor.h and gpu/gpu_instance.h.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "stretto/compiler.h"
#include "stretto/executor/executor.h"
#include "stretto/gpu/gpu_code.h"
#include "stretto/gpu/gpu_world.h"
#include "stretto/runtime/recorder.h"

namespace stretto {

// What launches work on, all but the extents. By tensor of the program; entries of buffers are
// ignored. On GPUs addresses are the device's and aligned to 16 bytes, and a SymmetricBuffer is the
// name, the size and every rank's address of memory that GpuWorld::allocate made.
struct Args {
  std::vector<TensorArg> tensors;
  // On GPUs, or null. As GpuLaunchArgs has them: where the rank's memory holds the scalars, and
  // whether blocks may begin before the stream's launch before has ended.
  const void* scalars = nullptr;
  bool starts_early = false;
};

// GPUs' memory as Args name it.
SymmetricBuffer on_gpus(std::string name, const SymmetricGpuMemory& memory);

// A rank's launches on certain memory. Valid as long as its Executable.
class Launch {
 public:
  Launch() = default;
  virtual ~Launch() = default;
  Launch(const Launch&) = delete;
  Launch& operator=(const Launch&) = delete;

  // Collective, as each launch is, with extents and scalars in declaration order. On CPU ranks
  // returns when the rank's part has ended; `stream` is null. On GPUs enqueues on `stream`, null:
  // the world's own, and returns. With extents that it has been run with nothing is allocated, and
  // nothing encoded. UserError for extents that were not proved, Fault for a world that has
  // stopped.
  virtual void run(std::span<const std::int64_t> extents, const cuda::Stream* stream = nullptr) = 0;
};

class Executable {
 public:
  Executable() = default;
  virtual ~Executable() = default;
  Executable(const Executable&) = delete;
  Executable& operator=(const Executable&) = delete;

  // Finds again what it made for the same places, the last kMostPrepared of them.
  // UserError for places that the program cannot use; on CPU ranks some are seen only by run().
  static constexpr std::size_t kMostPrepared = 64;
  virtual std::shared_ptr<Launch> prepare(const Args& args) = 0;
  virtual const Program& program() const = 0;  // at schedule level

  // On GPUs, with all ranks idle, collective; CPU ranks do these things with their world, and
  // nothing here. After GpuWorld::clear_fault:
  virtual void recover() {}
  // What was compiled to record begins to, or ends and moves what it has into `recorder`.
  virtual void begin_recording() {}
  virtual void end_recording(Recorder& /*recorder*/) {}
};

// Of one rank; collective. `rank` outlives what is returned.
std::unique_ptr<Executable> load(const Proved& program, Rank& rank,
                                 const InstanceOptions& options = {});
// Of each local rank, which share what is loaded; collective. `code` is that of `program`. Copy
// engines that send are enqueued as one graph (GpuInstance::replay_copies) where the process has
// one rank. Launches of ranks whose engines fetch need a process each.
std::vector<std::unique_ptr<Executable>> load(const Proved& program, GpuWorld& world, GpuCode code);

}  // namespace stretto
