// The synchronisation of one operation: signals, and the pipes and barriers of the worker being
// expanded, which are counters too. Part of the expansion (expand.h).
#pragma once

#include <deque>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "stretto/base/at.h"
#include "stretto/proof/expand_state.h"

namespace stretto {

class SyncExpander {
 public:
  // Numbers the signals' counters.
  // `by_units`: agents have to pass the same slots in the same units (trip_counts.h).
  SyncExpander(ExpandState& state, bool by_units);

  void start_agent();
  // Numbers the counters of the worker's pipes and barriers.
  void start_worker(int role, int worker);
  // Every pipe of the worker has had as many puts as gets and releases.
  bool even() const;
  // Rejected where puts, gets, releases or arrivals do not come out even. DependsOnTable where the
  // agents do not pass a slot for the same tables.
  void finish_worker() const;

  void signal(const Op& op);
  // A kPipePut begins before its read and ends after it; a kPipeFill reads no memory.
  // Slots of a pipe that the agent has put, or got.
  std::int64_t passed(int pipe) const;
  void pipe_get(const Op& op);
  void pipe_release(const Op& op);
  void begin_put(const Op& op);
  void end_put(const Op& op);
  void pipe_fill(const Op& op);
  // A register that holds a slot may not be read once the slot is released.
  void use_registers(const Op& op);
  bool holds_slots() const { return !held_.empty(); }
  bool hold_slots(const std::set<int>& registers) const;
  void async_dot(const Op& op);
  void await(const Op& op);
  void barrier(const Op& op);
  // Of loops that are left out (open_loops.h): a counter of the worker on which agents meet, which
  // no order may rely on, until it is at least `amount`.
  void add_meeting() { meeting_ = new_meeting(); }
  // Of several such counters (steady_runs.h) this one.
  void meet(const Op& op, std::int64_t amount, int counter = -1);
  int new_meeting();
  // The register that this one transposes, or itself.
  int viewed(int reg);
  // Reads a register, which may hold no slot that has been released.
  void read_register(const Op& op, int reg) { read_slot(op, viewed(reg)); }
  // As if the slots that these hold had been released.
  void forget(const std::set<int>& registers);
  bool awaits_dots() const { return !dots_.empty(); }
  bool moved(int pipe) const;

 private:
  struct PipeUse {
    std::int64_t puts = 0, gets = 0, releases = 0;
    int put_by = -1;  // agent
    // Where tables decide whether slots are passed: the choice of every event, in order, or its
    // unit.
    std::vector<int> put_choices, get_choices, release_choices;
    bool some = false;       // a slot has been put for some tables only
    std::int64_t turns = 0;  // of its ring, so far
    std::size_t turn = 0;    // of all of the ring's: from which the next gets are
  };
  // Slots that pipes share, as they were put: those of one pipe in a row are a turn.
  struct Turn {
    int pipe;
    std::int64_t first, count;  // which of the pipe's puts, from 1
    std::int64_t number;        // which of the pipe's turns, from 1
  };
  using Slot = std::pair<int, std::int64_t>;  // pipe, ordinal
  // Which slots registers hold, by their numbers: looked up at every operand.
  class HeldSlots {
   public:
    const Slot* find(int reg) const {
      const bool holds = at(reg) < slots_.size() && slots_[at(reg)].first >= 0;
      return holds ? &slots_[at(reg)] : nullptr;
    }
    void set(int reg, Slot slot);
    void erase(int reg);
    void clear();
    bool empty() const { return num_held_ == 0; }

   private:
    static constexpr Slot kNone{-1, 0};
    std::vector<Slot> slots_;
    std::size_t num_held_ = 0;
  };

  int add_counter(const Counter& counter);
  void add(const Op& op, SyncKind kind, int counter, std::int64_t amount);
  void add(const Op& op, Sync sync);
  int full(int pipe) const { return first_counter_ + 2 * pipe; }
  int empty(int pipe) const { return full(pipe) + 1; }
  int turn(int pipe) const {
    return full(static_cast<int>(role_->pipes.size())) + static_cast<int>(role_->barriers.size()) +
           pipe;
  }
  void free_shared(const Op& op, int ring);
  Turn& turn_of_get(int pipe, int ring);
  PipeUse& pipe_use(const Op& op);
  void note_choice(std::vector<int>& choices);
  int unit();
  int no_choice() const;
  void read_slot(const Op& op, int reg);

  ExpandState& state_;
  bool by_units_;
  std::vector<int> first_of_signal_;

  // The worker.
  const Role* role_ = nullptr;
  int worker_ = 0, first_counter_ = 0, meeting_ = -1;
  std::vector<PipeUse> pipes_;
  std::vector<int> ring_of_;                            // by pipe (rings_of)
  std::map<int, std::vector<Turn>> rings_;              // by such a ring
  std::map<std::pair<int, int>, std::int64_t> phases_;  // (agent, barrier)

  std::map<std::pair<std::int64_t, int>, int> units_;  // by tile and choice, as first met
  bool in_order_ = true;                               // no agent goes back to an earlier unit
  std::map<WherePositive, int> cases_;                 // of sizes

  int unit_ = -1;  // the agent's last
  // The agent: asynchronous dots read the slots of their operands until awaited.
  HeldSlots held_;
  // By register, up to the last that transposes one: which, through all of them. Of all agents, and
  // of the one that was asked about last.
  std::map<const Agent*, std::vector<int>> views_;
  const Agent* viewing_ = nullptr;
  const std::vector<int>* views_here_ = nullptr;
  std::deque<std::vector<Slot>> dots_;
};

}  // namespace stretto
