// Where the expansion of a program stands: the rank, tile and values at hand, and what has been
// written down so far. Shared by expand.cc, which walks, and by the parts that know accesses
// (expand_accesses.h) and synchronisation (expand_syncs.h).
#pragma once

#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "stretto/ir/walk_budget.h"
#include "stretto/proof/deciding_tables.h"
#include "stretto/proof/eval_scope.h"
#include "stretto/proof/part_turns.h"
#include "stretto/proof/table_cells.h"
#include "stretto/proof/trace_recorder.h"

namespace stretto {

// That the part at a partition's entry has rows from the offset on.
TableFact inhabited_from(const TablePoint& part);

// Of forms that are positive somewhere: a key.
using WherePositive = std::vector<std::pair<std::int64_t, SizePoint>>;
WherePositive key_of(const std::vector<SizeForm>& forms);

struct ExpandState {
  const Program& program;
  InstanceGraph graph;
  EvalScope scope;
  WalkBudget budget;
  TraceRecorder recorder;
  int rank = 0;
  std::int64_t tile = -1;
  int may_depth = 0;                             // inside what a table decides
  std::vector<std::optional<TableCells>> cells;  // per tensor
  bool has_cells = false;
  // Parts of a partition that have rows from `offset` on, where the program is now: each counts in
  // may_depth, and what is done to those rows happens whenever there are any.
  std::vector<TablePoint> inhabited;
  DecidingTables deciding;
  int untold_depth = 0;  // reasons for may_depth that facts() do not tell

  SizeRegion* region;  // or none
  // Of a region with masks open, in which there are rows to deal out; cells are then those of
  // part_turns.h.
  std::unique_ptr<PartTurns> turns;
  std::vector<std::vector<SizeForm>> shape_forms;  // per tensor, where there is a region
  // Positive where the program is now, at sizes that may leave it out (size_conditions.h).
  std::vector<SizeForm> there;

  ExpandState(const Program& program, const std::vector<std::int64_t>& extents,
              const TableWitness* witness, SizeRegion* sizes);
  ExpandState(const ExpandState&) = delete;

  // The walk is at this operation now: what is cut off the region from here on is its doing.
  void move_to(const Op& op) {
    if (region != nullptr && region->num_cuts() != num_cuts_) note_cut();
    at = &op;
  }
  const Op* at = nullptr;

  // What is so where the program is now, for some tables only, where any decides what is waited
  // for.
  const std::vector<int>& facts() const { return facts_; }
  void enter(std::span<const int> facts) {
    facts_.insert(facts_.end(), facts.begin(), facts.end());
    choice_.reset();
  }
  void leave(std::span<const int> facts) {
    facts_.resize(facts_.size() - facts.size());
    choice_.reset();
  }
  // Its number, for every event here.
  int choice() const {
    if (facts_.empty()) return TableChoices::kAlways;
    if (!choice_) choice_ = graph.choices->choice(facts_);
    return *choice_;
  }
  // Whether no read of a loop moves along rows that a table deals out: then all of them lie in the
  // parts that the first lies in, at the same rows.
  bool stays_in_parts(const Op& loop, const std::set<int>& moving) const;
  [[noreturn]] void reject(const Op& op, const std::string& what) const;

 private:
  void note_cut();
  void note_shape(const Tensor& tensor, std::vector<std::int64_t>& shape);
  void see_by_parts(int tensor, std::vector<std::int64_t>& shape,
                    std::vector<SizeMasks::Side>& sides);
  void require_cells_of_turns() const;
  void check_storage(const Tensor& tensor, const std::vector<std::int64_t>& shape) const;

  int num_cuts_ = 0;
  double num_sizes_ = 1;
  std::vector<int> facts_;
  mutable std::optional<int> choice_;
};

}  // namespace stretto
