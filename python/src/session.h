// A world between init and finalize of a Python process: its ranks here, what symmetric memory of
// theirs is in use, and the GPU where calls have arrays on one. Comes before executable.h.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "gpu_side.h"
#include "stretto/runtime/world.h"

namespace stretto::python {

class GpuExecutable;
class SymmetricMemory;

class Session {
 public:
  explicit Session(std::unique_ptr<World> world);

  World& world() { return *world_; }
  // UserError for a rank of another process, or once finalized.
  Rank& rank(int index);
  int size() const { return world_->size(); }
  int local_rank() const { return world_->local_ranks().front(); }

  // Makes the GPU side, where there is none; collective then, with the errors of GpuSide. UserError
  // where it is on another GPU.
  void open_gpu(const GpuSide::Options& options);
  // UserError once finalized, InternalError before open_gpu().
  GpuSide& gpu();
  // Instances that start anew when the world recovers, in the same order on every rank.
  void add_executable(GpuExecutable& executable);
  void remove_executable(GpuExecutable& executable) noexcept;
  // Gives back memory of the GPU that work under way may still touch.
  void retire(SymmetricGpuMemory memory) noexcept;
  // What launches do from now on, or until now, on GPUs once they are idle: those of executables
  // that record. UserError once finalized.
  void record(bool on);
  // What was recorded, which is forgotten; that of `alone`, a world of this rank only, beside it.
  // UserError where the file cannot be written.
  void write_trace(const std::string& path, Session* alone);
  // Throws the Fault of an earlier launch on a GPU, where there has been one.
  void check();
  // Every wait of every rank fails with this fault from now on.
  void fail(int rank, const std::string& reason);

  // Which memory of the rank holds the address; null where it is ordinary memory.
  const SymmetricMemory* find_memory(int rank, const std::byte* address);
  void add_memory(int rank, const SymmetricMemory& memory);
  // Gives the memory back to the world.
  void remove_memory(Rank& rank, const SymmetricMemory& memory) noexcept;

  // No rank may be used afterwards. Leaves the world once no symmetric memory is in use, since
  // arrays show it; `at_once`: now, where nobody will look at them again.
  void finalize(bool at_once);
  // Called for every local rank after a Fault; the last one to come recovers the world. UserError
  // where a local rank does not come within the world's timeout; else as World::recover.
  void recover();

 private:
  void leave();

  std::unique_ptr<World> world_;
  std::mutex mutex_;  // of what follows
  std::unique_ptr<GpuSide> gpu_;
  std::vector<GpuExecutable*> executables_;
  std::condition_variable changed_;
  std::vector<std::map<const std::byte*, const SymmetricMemory*>> memories_;  // [world] by end
  int num_memories_ = 0;
  bool finalized_ = false, left_ = false;
  int num_recovering_ = 0;
  std::uint64_t num_recoveries_ = 0;
};

}  // namespace stretto::python
