// A world between init and finalize of a Python process: its ranks here, and what symmetric memory
// of theirs is in use. Comes before executable.h.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "stretto/runtime/world.h"

namespace stretto::python {

class SymmetricMemory;

class Session {
 public:
  explicit Session(std::unique_ptr<World> world);

  World& world() { return *world_; }
  // UserError for a rank of another process, or once finalized.
  Rank& rank(int index);
  int size() const { return world_->size(); }
  int local_rank() const { return world_->local_ranks().front(); }

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
  std::unique_ptr<World> world_;
  std::mutex mutex_;  // of what follows
  std::condition_variable changed_;
  std::vector<std::map<const std::byte*, const SymmetricMemory*>> memories_;  // [world] by end
  int num_memories_ = 0;
  bool finalized_ = false, left_ = false;
  int num_recovering_ = 0;
  std::uint64_t num_recoveries_ = 0;
};

}  // namespace stretto::python
