// A world is P ranks that share symmetric memory and signals, of two kinds: threads of this process
// (WorldOptions), or one process per rank on one host (ProcessWorldOptions). Everything above
// (executor, operators, engine) is written against Rank, in the style of one program run by every
// rank, and does not see the kind.
//
// Faults: no wait is unbounded. The waiter that aborts, or the rank that dies, records a
// FaultRecord and raises the world's abort flag; from then on every wait of every rank fails with
// that same Fault until recover(). A process that ends without finalise() is noticed by the others,
// also where it was killed.
//
// A world cannot be used in a child of fork(), nor after finalise(): UserError. One rank is used by
// one thread at a time; a second one in a collective call gets a UserError.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "stretto/base/dtype.h"
#include "stretto/base/errors.h"
#include "stretto/runtime/processes/fd.h"
#include "stretto/runtime/world_options.h"

namespace stretto {

class Recorder;
class Rank;
struct WorldState;

// Memory at the same offset on every rank. Plain handle: the world owns the storage until it is
// destroyed or the last rank has released it (see Rank::release).
struct SymmetricBuffer {
  std::string name;
  DType dtype = DType::kU8;
  std::size_t bytes = 0;       // per rank
  std::vector<std::byte*> at;  // [world] address of each rank's copy; 64-byte aligned, zeroed
  int id = -1;

  template <typename T>
  T* on(int rank) const {
    return reinterpret_cast<T*>(at[static_cast<std::size_t>(rank)]);
  }
};

// Symmetric monotone counters, each on a cache line of its own.
struct alignas(64) SignalCounter {
  std::atomic<std::uint64_t> value{0};
};
struct SignalBlock {
  std::string name;
  std::size_t count = 0;           // counters per rank
  std::vector<SignalCounter*> at;  // [world]
  int id = -1;
};

class World {
 public:
  static constexpr int kMaxWorldSize = 64;

  // UserError for a size outside 1..kMaxWorldSize or a timeout under 1 ms.
  explicit World(const WorldOptions& options);
  // Returns when all processes have come. Fault naming a rank that does not come within the
  // timeout; UserError where the processes disagree about the world or cannot reach each other.
  explicit World(const ProcessWorldOptions& options);
  ~World();  // as finalise(); in a child of fork() it leaves the parent's world alone
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  int size() const;
  std::chrono::milliseconds timeout() const;
  // The ranks of this process: all, or one in a world of processes.
  const std::vector<int>& local_ranks() const;
  // One thread at a time may use it outside run(). UserError where the rank is not local.
  Rank& rank(int index);
  Rank& local_rank() { return rank(local_ranks().front()); }

  // Runs body(rank) on one thread per local rank and returns when those have finished; every
  // process of a world runs as often. When a rank throws, the others' waits and collective calls
  // fail with a Fault naming it, and the world is faulted. Rethrows the exception of the lowest
  // local rank that failed by itself, else the Fault. The Rank
  // objects are the same in every run and live as long as the world. Not re-entrant (UserError).
  // A rank that neither waits nor returns cannot be taken off its thread: after a fault run() waits
  // for it and logs which ranks it waits for.
  void run(const std::function<void(Rank&)>& body);

  // True after a fault. fault() is the record of the first one.
  bool faulted() const;
  FaultRecord fault() const;
  // Zeroes every signal, tells every registered instance to restart at epoch 0, clears the fault
  // and any half-finished collective call. Symmetric buffers keep their contents. Call it outside
  // run() (else UserError), in a world of processes on every one of them (else Fault). A world that
  // has lost a process stays faulted: a Fault that names the process.
  void recover();

  // Leaves the world and gives its memory back: handles and instances made from it are void. The
  // others may go on, but not wait for this process.
  void finalise();

  Recorder& recorder();

  // For the runtime itself.
  explicit World(std::shared_ptr<WorldState> state);

 private:
  friend class Rank;
  std::shared_ptr<WorldState> state_;
  std::vector<std::unique_ptr<Rank>> ranks_;  // [world], null where not local
};

// One rank's handle, used by its thread alone.
class Rank {
 public:
  int index() const { return index_; }
  int size() const;

  // Collective: every rank calls with the same name, dtype and size, in the same order; otherwise
  // every rank gets the same UserError naming both requests, and the next collective call starts
  // afresh. Fault if a rank does not come within the timeout, at once where its body has returned.
  SymmetricBuffer allocate(const std::string& name, DType dtype, std::size_t elements);
  SignalBlock allocate_signals(const std::string& name, std::size_t count);
  // Not collective, also outside run() and after a fault: the storage goes with the last rank's
  // release. An empty handle (id -1) is ignored; UserError when this rank has released it already.
  void release(const SymmetricBuffer& buffer);
  void release(const SignalBlock& signals);

  // A host-level barrier over all ranks, for set-up and tests. A launch never has it.
  void barrier();

  // Collective: returns when every rank is about to make the same call, so that ranks that are out
  // of step hear of it before they wait for each other. `name` says which call in errors, `content`
  // is a hash of what else must be the same. Errors as allocate. Takes about as long as a barrier.
  void agree(const std::string& name, std::uint64_t content);

  // As agree(), but false, on every rank, where all make this call and their contents differ.
  bool same(const std::string& name, std::uint64_t content);

  // For the layer above, where it does not make a call after all: counts as this rank's next
  // collective call `name`. Others that wait in theirs in this place, or come to it, get a
  // Disagreement that says so and why, at once. Does not wait for them, unless this rank has
  // refused others before that they have yet to come to. Errors as barrier().
  void refuse(const std::string& name, const std::string& reason);
  // Collective calls that this rank has come to, and which rank has refused one of them, and why;
  // "" where none has. For a call that this rank has not gone past.
  std::uint64_t num_calls() const;
  std::string refusal(std::uint64_t call) const;

  // A world of its own for some of the ranks, renumbered in ascending order, with its own memory,
  // signals and faults; several may be in use at once. Collective over all ranks of this world:
  // each names the group that it belongs to, itself included, or none and gets nullptr. UserError
  // on every rank where members of a group disagree. The handle keeps its world alive, and
  // handle->world() is that world. A member that dies, or whose body throws in this world, faults
  // the sub-worlds it belongs to; other ranks do not.
  std::shared_ptr<Rank> split(const std::vector<int>& group);

  // `restart` is called when the world recovers, so that epochs restart with the signals. Returns a
  // token for remove_on_recover.
  int on_recover(std::function<void()> restart);
  void remove_on_recover(int token);

  // --- for executors ---
  // Polled after a failed wait only. Raises nothing.
  bool aborted() const;
  // Records the fault (the first one wins), raises the abort flag, and throws the Fault that won.
  [[noreturn]] void raise_fault(FaultRecord record);
  [[noreturn]] void throw_fault() const;  // the world's fault, from a rank that saw the abort flag
  std::chrono::milliseconds timeout() const;
  // Call after each failed poll: waits without burning a core, and returns when it is worth polling
  // again. `polls` is how many polls in a row have failed; grows from spinning to
  // sleeping until a notify_changed, at most 1 ms. Throws what an interrupt throws, which is a
  // fault for the others (base/interrupts.h).
  void pause(int polls) const;
  // Call after each store that rank `to` may be waiting for (a signal, a packet): wakes it if it
  // sleeps in pause(). Without it the rank notices within 1 ms.
  void notify_changed(int to) const;

  // --- for memory that is not the world's own, in a world of processes (UserError in others) ---
  // Collective, checked and refused on every rank as allocate() is: make() gives a descriptor of
  // `bytes` of this rank's memory, which is passed to all; open(r, memory) takes that of every
  // other rank r. What either throws is the UserError of every rank.
  void exchange_memory(const std::string& name, std::size_t bytes, const std::function<Fd()>& make,
                       const std::function<void(int, Fd)>& open);
  // Calls on_death(r) once for every rank r whose process has ended or ends without leaving, after
  // the fault has been recorded, on any thread, until unwatch_deaths(token) has returned.
  int watch_deaths(std::function<void(int)> on_death);
  void unwatch_deaths(int token);

  World& world() { return *world_; }
  Recorder& recorder();

 private:
  friend class World;
  Rank(World* world, int index) : world_(world), index_(index) {}
  World* world_;
  int index_;
};

}  // namespace stretto
