// A world of a Python process, from init or new_group to finalize: its ranks here, what symmetric
// memory of theirs is in use, and the GPU where calls have arrays on one. A process may be in
// several. Comes before session_executable.h.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "gpu_side.h"
#include "stretto/runtime/world.h"

namespace stretto::python {

class GpuSessionExecutable;
class SymmetricMemory;

// What the sessions of a process share: the ledger of the GPU that they are on.
class SharedLedger {
 public:
  std::shared_ptr<GpuLedger> get();
  void set(std::shared_ptr<GpuLedger> ledger);

 private:
  std::mutex mutex_;
  std::shared_ptr<GpuLedger> ledger_;
};

class Session {
 public:
  // `ledger`: of the process's other sessions; null: the first of them.
  Session(std::shared_ptr<World> world, std::shared_ptr<SharedLedger> ledger);
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // A world of its own for some ranks, and the rank's number there; null for a rank that is not in
  // `group`, the group of the calling rank. Collective over this world, all of whose ranks say the
  // same `request`. Ranks of threads get the same session. Errors as Rank::split.
  std::pair<std::shared_ptr<Session>, int> split(int rank, const std::vector<int>& group,
                                                 const std::string& request);
  const std::shared_ptr<SharedLedger>& ledger() const { return ledger_; }

  World& world() { return *world_; }
  // UserError for a rank of another process, or once it has finalized.
  Rank& rank(int index);
  int size() const { return world_->size(); }
  int local_rank() const { return world_->local_ranks().front(); }

  // Makes the GPU side, where there is none; collective then, with the errors of GpuSide. UserError
  // where it is on another GPU.
  void open_gpu(const GpuSide::Options& options);
  // UserError once finalized, InternalError before open_gpu().
  GpuSide& gpu();
  // Instances that start anew when the world recovers, in the same order on every rank.
  void add_executable(GpuSessionExecutable& executable);
  void remove_executable(GpuSessionExecutable& executable) noexcept;
  // Gives back memory of the GPU that work under way may still touch.
  void retire(SymmetricGpuMemory memory) noexcept;
  // What launches do from now on, or until now, on GPUs once they are idle: those of executables
  // that record. UserError once finalized.
  void record(bool on);
  // What the sessions have recorded, each with a name. UserError where the file cannot be written.
  using Named = std::pair<std::shared_ptr<Session>, std::string>;
  static void write_trace(const std::string& path, const std::vector<Named>& sessions);
  void forget_recording();
  // Every rank says that it makes this call, which launches nothing; UserError on all where they
  // differ. Collective.
  void agree(int rank, const std::string& call);
  // The rank does not make its next collective call after all, for this reason: counts as `call`
  // and does not wait; others that wait in it get a UserError, where they have launched it on GPUs
  // a Fault. Errors as Rank::refuse.
  void refuse(int rank, const std::string& call, const std::string& reason);
  // As agree(), but false, on every rank, where all make this call and their contents differ.
  bool same(int rank, const std::string& call, std::uint64_t content);
  // The number of a launch of this rank, from 1 on.
  std::uint64_t count_launch(int rank) { return ++num_launches_[static_cast<std::size_t>(rank)]; }
  // Throws the Fault of an earlier launch on a GPU, where there has been one.
  void check();
  // Every wait of every rank fails with this fault from now on.
  void fail(int rank, const std::string& reason);

  // Which memory of the rank holds the address; null where it is ordinary memory.
  const SymmetricMemory* find_memory(int rank, const std::byte* address);
  // The how manyth of the rank's memories it is, the same number on every rank.
  std::uint64_t add_memory(int rank, const SymmetricMemory& memory);
  // Gives the memory back to the world.
  void remove_memory(Rank& rank, const SymmetricMemory& memory) noexcept;

  // The rank may not be used afterwards. With the last one here, leaves the world once no symmetric
  // memory is in use, since arrays show it; `at_once`: now, where nobody will look at them again.
  void finalize(int rank, bool at_once);
  // Called for every local rank after a Fault; the last one to come recovers the world. UserError
  // where a local rank does not come within the world's timeout; else as World::recover.
  void recover();

 private:
  void leave();
  void require_open(int rank) const;

  std::shared_ptr<World> world_;
  std::shared_ptr<SharedLedger> ledger_;
  std::vector<std::uint64_t> num_launches_;  // [world], by its rank's thread
  mutable std::mutex mutex_;                 // of what follows
  std::unique_ptr<GpuSide> gpu_;
  std::vector<GpuSessionExecutable*> executables_;
  std::condition_variable changed_;
  std::vector<std::map<const std::byte*, const SymmetricMemory*>> memories_;  // [world] by end
  std::vector<std::uint64_t> memories_made_;                                  // [world]
  int num_memories_ = 0;
  std::vector<bool> finalized_;  // [world]
  int num_open_;                 // ranks here that have not
  bool left_ = false;
  std::map<World*, std::weak_ptr<Session>> parts_;  // that threads have been handed
  int num_recovering_ = 0;
  std::uint64_t num_recoveries_ = 0;
};

}  // namespace stretto::python
