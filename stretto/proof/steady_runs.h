// Operations in a row that pass slots of pipes alike in every tile, on every rank, at every size,
// as a product's loop does: where masks are left open (size_masks.h) they need not be walked slot
// by slot. A producer's loop of puts is one such run; the consumer's loop of gets with the releases
// behind it is another.
//
// The graph leaves the slots out, and has what a run reads. That launches end is shown in two
// steps, as for loops that sizes end (open_loops.h): runs that belong together, by themselves, from
// slots that are all free; and the launch with a meeting of their agents in place of each run.
// docs/decisions/0054-runs-of-slots-are-one-meeting.md has the argument. What does not fit is
// walked.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include "stretto/proof/expand_state.h"
#include "stretto/proof/expand_syncs.h"

namespace stretto {

// The role's agents do not go through the same runs: it has to be walked slot by slot.
struct UnevenRuns {
  int role;
};

struct SteadyRun {
  const Block* block = nullptr;
  std::size_t begin = 0, end = 0;  // operations
  std::set<int> pipes, used, got;  // slots that it passes; registers: operands, those that get one
};

class SteadyRuns {
 public:
  // `uneven`: how often roles were found to have other runs in one agent than in another. At first
  // runs are as long as may be; then loops around loops over slots are walked; then all slots are.
  // `at_one_size`: they are taken in a graph for one vector of sizes, too.
  SteadyRuns(ExpandState& state, SyncExpander& syncs, const std::map<int, int>& uneven,
             bool at_one_size)
      : state_(state), syncs_(syncs), uneven_(uneven), at_one_size_(at_one_size) {}

  // `others`: whether anything else is left out of the role, with which runs do not mix.
  void start_worker(const Role& role, bool others);
  void start_agent();
  // The runs of a block that are taken, in order.
  const std::vector<SteadyRun>* of(const Block& block) const;
  // The agent's registers are as the run needs them. Before its reads are written down.
  void enter(const SteadyRun& run);
  // The agents meet in place of the run, whose reads are the agent's accesses from `first_read` on.
  void leave(const SteadyRun& run, std::size_t first_read);
  // UnevenRuns where the agents do not go through the same ones, or may get stuck in them.
  void finish_worker();

  // Whether all slots that the block passes are of runs that are taken.
  bool has_all_slots_of(const Role& role, const Block& block);

 private:
  struct Found {
    std::unordered_map<const Block*, std::vector<SteadyRun>> runs;
    std::map<const SteadyRun*, std::set<int>> met;  // the agents that meet in its place
  };
  struct SlotRead {
    int pipe;
    std::size_t access;  // of its agent
  };
  struct Visit {
    const SteadyRun* run;
    std::vector<SizeForm> there;
    int choice;
    std::int64_t tile;
    int pos;  // events of the agent before what follows
    std::vector<SlotRead> reads;
  };
  using Part = std::pair<int, const SteadyRun*>;  // of an agent

  // As long as may be, or within loops around loops.
  const Found& found_in(const Role& role, bool inner);
  // None: they are not taken.
  const Found* taken_in(const Role& role);
  static bool is_steady_run(const Op& op, bool inner);
  static void find_runs(const Block& block, bool inner, Found& found);
  static bool fits(const Role& role, Found& found);
  static std::set<int> slots_outside(const Block& block, const Found& found);
  bool come_through(const std::vector<Part>& parts);
  std::vector<WherePositive> at_some_sizes(const Visit& visit) const;
  std::vector<int> of_tables(const Visit& visit) const;
  [[noreturn]] void refuse() const;

  ExpandState& state_;
  SyncExpander& syncs_;
  const std::map<int, int> uneven_;
  const bool at_one_size_;
  std::map<std::pair<const Role*, bool>, std::unique_ptr<Found>> found_;
  std::map<std::vector<Part>, bool> known_;

  // The worker.
  const Role* role_ = nullptr;
  const Found* here_ = nullptr;  // none: no runs are taken
  std::size_t first_agent_ = 0;  // of the graph
  int agent_ = -1;
  std::map<std::set<int>, int> counters_;                              // by agents that meet
  std::map<std::set<int>, std::map<int, std::vector<Visit>>> visits_;  // and by agent
};

}  // namespace stretto
