// What a world keeps, the same for both kinds: `local` and `peers` tell them apart. Its ranks meet,
// fail and recover here; world.h runs them over it.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "stretto/runtime/control_block.h"
#include "stretto/runtime/processes/peers.h"
#include "stretto/runtime/recorder.h"
#include "stretto/runtime/rendezvous.h"
#include "stretto/runtime/symmetric_heap.h"
#include "stretto/runtime/world_options.h"

namespace stretto {

class World;

struct WorldState {
  // Of threads. UserError as World says.
  explicit WorldState(const WorldOptions& options);
  // Of processes: `rank` is the own one, `members` their ranks among the peers, `id` this world's
  // among those of the same peers.
  WorldState(const WorldOptions& options, int rank, std::shared_ptr<Peers> peers,
             std::vector<int> members, std::uint64_t id);
  ~WorldState();
  // Of processes that find each other; returns when all have come. Errors as World says.
  static std::shared_ptr<WorldState> bootstrapped(const ProcessWorldOptions& options);

  static std::size_t index(int rank) { return static_cast<std::size_t>(rank); }

  // UserError in a child of fork() and after finalise().
  void require_usable() const;
  bool aborted() const { return control->abort.load(std::memory_order_acquire) != 0; }
  void record_fault(const FaultRecord& record);
  void record_death(int rank, const std::string& what);
  // Of a rank whose wait has ended early (base/interrupts.h).
  void record_interrupt(int rank);
  std::optional<FaultRecord> fault() const;
  Fault winner() const;  // of an aborted world

  // Collective calls. UserError or Fault as Rank says.
  void come_together(int rank, const CollectiveRequest& request);
  void refuse(int rank, const std::string& name, const std::string& reason);
  struct Block {
    int id = -1;
    std::vector<std::byte*> at;  // [world]
  };
  Block allocate(int rank, const CollectiveRequest& request, std::size_t each_bytes);
  void release(int rank, int id);
  void exchange(int rank, const CollectiveRequest& request, const std::function<Fd()>& make,
                const std::function<void(int, Fd)>& open);
  // The world of the group's ranks, made once for those of this process; null for an empty group.
  using MakeWorld = std::function<std::shared_ptr<World>(std::shared_ptr<WorldState>)>;
  std::shared_ptr<World> split(int rank, std::uint64_t group, const std::string& error,
                               const MakeWorld& make);
  void recover();
  void finalise();

  // A rank whose body has failed in this world will not come in its sub-worlds either.
  void fail_in_children(int rank, const std::string& what);

  WorldOptions options;
  std::vector<int> local;
  std::shared_ptr<Peers> peers;  // null in a world of threads
  std::vector<int> members;      // [world] ranks among the peers
  std::uint64_t id = 0;
  Control control;
  Rendezvous rendezvous;
  std::unique_ptr<SymmetricHeap> heap;
  Recorder recorder;
  const pid_t creator;
  std::vector<std::atomic<bool>> in_call;  // [world] guards against a second thread
  std::atomic<bool> running{false};
  std::atomic<bool> finalised{false};

  mutable std::mutex mutex;  // of what follows
  std::map<int, std::function<void()>> restarts;
  int next_token = 0;
  struct Child {
    std::uint64_t group = 0;  // bit per rank
    std::weak_ptr<WorldState> state;
  };
  std::vector<Child> children;
  // Being handed out to the threads of their members.
  struct NewChild {
    std::shared_ptr<World> world;
    int num_taken = 0;
  };
  std::map<std::pair<std::uint64_t, std::uint64_t>, NewChild> new_children;  // by id and group

  // One meeting of a call; the caller has checked that the rank may call.
  void meet(int rank, const CollectiveRequest& request);

 private:
  // Throws what the outcome of a call says, if anything.
  void conclude(int rank, const CollectiveRequest& request, const Rendezvous::Outcome& outcome);
  void watch_peers();
  int first_gone() const;  // the lowest rank whose process has left or died
  void require_all_here();
  std::uint64_t next_id(int rank);
  void recover_step(const char* what);
  std::shared_ptr<World> make_child(std::uint64_t id, std::uint64_t group, int rank,
                                    const MakeWorld& make);
  std::shared_ptr<World> child_of_threads(std::uint64_t id, std::uint64_t group,
                                          const MakeWorld& make);
  void add_child(std::uint64_t group, const std::shared_ptr<WorldState>& child);  // locked
  void confirm(int rank, const std::string& name, const std::function<void()>& act);

  int death_token_ = -1;
};

}  // namespace stretto
