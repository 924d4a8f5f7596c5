// Conditions by size around what an agent does, where masks are left open (size_masks.h): gemm_rs
// multiplies a tile if some row of it is there. They need not narrow the region either.
//
// What is under such a condition is walked as if it were always so, and says when it happens: the
// forms of the sizes that are positive then (ExpandState::there). Boxes get them as masks. Waits,
// fences and packets are of a choice (table_choices.h), so the order holds without them, and only
// what is under the same condition may rely on them. Slots of pipes are passed or left out by all
// agents of a worker alike (SyncExpander::finish_worker), or the pieces are not used; that launches
// end is shown with all of them, and nobody else may rely on a pipe that is moved at some sizes
// only (pipe_slice.h).
#pragma once

#include <map>
#include <optional>
#include <set>
#include <unordered_map>
#include <vector>

#include "stretto/proof/expand_state.h"
#include "stretto/proof/steady_runs.h"

namespace stretto {

// Whether any agent waits for a signal under a condition. All agents of such a role decide theirs
// where such waits are not left open, so that they pass the same slots.
bool waits_under_condition(const Role& role);

class SizeConditions {
 public:
  SizeConditions(ExpandState& state, SteadyRuns& runs) : state_(state), runs_(runs) {}

  void start_agent() { num_new_ = 0; }

  // Whether tiles of the role that some sizes leave out may be walked as what is under a condition
  // is: nobody tells it anything, nor hears of it, but its agents by slots that no pipes share, or
  // that are passed in runs alone.
  bool tiles_may_be_open(const Role& role);
  // Calls walk() for what happens where these are positive.
  template <typename Walk>
  void where(const std::vector<SizeForm>& there, const Walk& walk) {
    there.empty() ? walk() : under(there, walk);
  }

  // A truth, or the forms that are all positive where it is so.
  struct Truth {
    std::optional<bool> known;
    std::vector<SizeForm> forms;
  };
  // Whether so many tiles or more are there. Of a scope with a region.
  std::optional<Truth> more_than(std::int64_t tiles, const Expr& num_tiles) {
    return less_than({.value = tiles}, num_tiles);
  }

  // Calls walk(body) for the body of a condition that sizes do not decide, or for each of its
  // bodies at the sizes at which it happens. False where the condition has to be decided: it is
  // made in another way, or what is under it has to be there at all sizes alike.
  template <typename Walk>
  bool walk(const Op& when, const Walk& walk) {
    if (state_.region == nullptr || !state_.region->masks_open()) return false;
    if (state_.scope.goes_by_table(when.exprs[0])) return false;
    std::optional<Truth> holds = truth(when.exprs[0]);
    decide_if_cheap(holds);
    decide_if_nothing_is_empty(when, holds);
    if (!holds) return false;
    if (holds->known) {
      walk(when.bodies[*holds->known ? 0 : 1]);
      return true;
    }
    std::optional<Truth> not_so = negated(*holds);
    if (!may_be_open(when) || (!not_so && !when.bodies[1].empty())) return false;
    under(holds->forms, [&] { walk(when.bodies[0]); });
    if (!when.bodies[1].empty()) under(not_so->forms, [&] { walk(when.bodies[1]); });
    return true;
  }

 private:
  // What happens where these are positive.
  template <typename Walk>
  void under(const std::vector<SizeForm>& there, const Walk& walk) {
    enter(there);
    walk();
    leave(there);
  }
  void enter(const std::vector<SizeForm>& there);
  void leave(const std::vector<SizeForm>& there);
  std::optional<Truth> truth(const Expr& condition);
  std::optional<Truth> decided_truth(const Expr& condition);
  bool compares(const Expr& expr);
  void decide_if_cheap(std::optional<Truth>& truth);
  void decide_if_nothing_is_empty(const Op& when, std::optional<Truth>& truth);
  std::optional<Truth> negated(const Truth& of) const;
  std::optional<Truth> less(const Expr& a, const Expr& b, std::int64_t more);
  std::optional<Truth> less_than(SizeForm from, const Expr& b);
  Truth less_than_all(const SizeForm& from, const std::vector<SizeForm>& ends) const;
  std::optional<Truth> both(std::optional<Truth> a, std::optional<Truth> b) const;
  bool may_be_open(const Op& when);
  bool has_to_happen_here(const Block& block, const std::set<int>& set_within);

  ExpandState& state_;
  SteadyRuns& runs_;
  struct Openness {
    bool may = false;
    bool settles = false;  // others count on something in it, perhaps not in every tile
    std::set<int> vars;    // that are set in it
  };
  std::unordered_map<const Op*, Openness> may_be_open_;
  std::unordered_map<const Role*, bool> waits_;  // under a condition
  std::unordered_map<const Role*, bool> open_tiles_;
  std::set<WherePositive> left_open_;   // of what costs many sizes
  double kept_ = 1;                     // part of the sizes
  std::map<WherePositive, int> facts_;  // by where they are so
  int num_new_ = 0;                     // that the agent was the first to ask for
  std::vector<int> entered_;
};

}  // namespace stretto
