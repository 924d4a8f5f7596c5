// The local ranks of a world, held open: World::run gives a rank to a body for as long as the body
// runs; a Python process wants its rank between init and finalize. Comes before executable.h.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "stretto/runtime/world.h"

namespace stretto::python {

class SymmetricMemory;

class Session {
 public:
  // Returns once every local rank is there. Errors of World::run.
  explicit Session(std::unique_ptr<World> world);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  World& world() { return *world_; }
  // UserError for a rank of another process, or once finalized.
  Rank& rank(int index);
  int size() const { return world_->size(); }

  // Which memory of the rank holds the address; null where it is ordinary memory.
  const SymmetricMemory* find_memory(int rank, const std::byte* address);
  void add_memory(int rank, const std::byte* end, const SymmetricMemory* memory);
  void remove_memory(int rank, const std::byte* end);

  // No rank may be used afterwards; memory that was allocated stays until the session is destroyed.
  void finalize();
  // Called by every local rank after a Fault; the last one to come recovers the world. UserError
  // where a local rank does not come within the world's timeout.
  void recover();

 private:
  void open();
  void close();

  std::unique_ptr<World> world_;
  std::thread runner_;
  std::mutex mutex_;  // of what follows
  std::condition_variable changed_;
  std::vector<Rank*> ranks_;  // [world], null where another process has it or none runs
  int num_present_ = 0, num_local_ = 0;
  bool leave_ = false, finalized_ = false;
  std::string failure_;                                                       // of World::run
  std::vector<std::map<const std::byte*, const SymmetricMemory*>> memories_;  // [world] by end
  int num_recovering_ = 0;
  std::uint64_t num_recoveries_ = 0;
};

}  // namespace stretto::python
