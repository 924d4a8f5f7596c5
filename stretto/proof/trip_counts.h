// Loops that do nothing but pass slots of pipes and read a rank's own inputs, as often as a table
// says (DecidingTables::counted_loops): attention over a sequence's keys, say.
//
// Which of their iterations are there matters to nobody else: what they read nobody writes, and
// who relies on no slot of theirs loses an order, never gains one. So the graph of all tables
// leaves the slots of their pipes out, and what is left to show is that the agents do not get
// stuck, whatever the tables say. For that the worker is looked at with all its loops run 0 times,
// once, twice, and so on, up to a number that shows what all others do (pipe_loops.h).
//
// Why no other number does anything else: all loops and conditions around slots that go by how
// often such a loop runs, those of other agents, too, which may have taken iterations out of it
// (overlap_products.h) or make several at a time (stagger_products.h), are computed for every
// number that there may be, and each has to go on as it did over the last of those looked at.
//
// Why loops that run differently often need not be looked at together: call a unit what a worker
// does in one tile for the same tables. All loops of a unit run equally often, the agents go from
// unit to unit in the same order, and in each unit puts, gets and releases of each pipe are as
// many, whatever the number. So a full slot is got in the unit in which it was put, it is free
// before that unit is over, and no cycle of waits reaches from one unit into another.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "stretto/proof/eval_scope.h"

namespace stretto {

class TripCounts {
 public:
  using Unit = std::pair<std::int64_t, int>;  // tile, choice

  // `wanted`: how often every loop runs, or as often as it may if that is less. Absent: loops are
  // not to be run, and nothing below is to be called.
  TripCounts(EvalScope& scope, std::optional<std::int64_t> wanted)
      : scope_(scope), wanted_(wanted) {}

  bool wanted() const { return wanted_.has_value(); }
  // From `walked` iterations on nothing new happens, of several at a time of `step`.
  void start_worker(std::int64_t walked, std::int64_t step);
  void start_agent();
  // A variable has got the value of `definition`, or is open.
  void let(int var, const Expr& definition);

  // All below: DependsOnTable where it cannot be shown that a few numbers stand for all.

  // Gives the variables that a loop's bounds come from such values.
  void fix(const Op& loop);
  // Before a loop around slots, whose bounds are known, is walked, and after.
  void enter(const Op& loop, const Unit& unit);
  void leave(const Op& loop);
  // A condition around slots.
  void meet(const Op& when);

 private:
  // A loop's, as it is written, and all that they may be.
  struct Bounds {
    Expr begin, end;
    ValueRange begins, ends;
  };
  // How often it runs, and one of its iterations.
  struct Point {
    std::int64_t begin, end, iteration;
  };
  // By which loop's bounds a bound or a condition goes, -1: none.
  int goes_by(const Expr& expr);
  int goes_by(const std::vector<Expr>& exprs);
  void fix(const Expr& bound, std::int64_t value, int bounds);
  std::int64_t at(const Expr& expr, const Bounds& bounds, const Point& point) const;
  std::int64_t trips_at(const Op& loop, const Bounds& bounds, const Point& point) const;
  void known_values(const Expr& expr, std::vector<std::int64_t>& values) const;
  bool is_new(const Op& op, const Bounds& bounds);
  template <typename Use>
  void for_each_point(const Bounds& bounds, const Use& use) const;
  void check(const Op& op, const Bounds& bounds);
  void check_in_loop(const Op& when, const Bounds& bounds);

  EvalScope& scope_;
  std::optional<std::int64_t> wanted_;
  std::int64_t walked_ = 0, step_ = 1;
  std::set<std::tuple<const Op*, std::vector<std::int64_t>>> checked_;

  // The worker.
  std::vector<Bounds> bounds_;
  std::map<std::string, std::pair<std::int64_t, int>> values_;  // by definition; of which bounds
  std::map<Unit, int> of_unit_;                                 // which bounds its loops go by

  // The agent.
  std::map<int, int> fixed_;      // variables that have got such a value; of which bounds
  std::map<int, Expr> computed_;  // what others were computed from that go by them
  const Op* loop_ = nullptr;      // that is being walked and goes by them
};

}  // namespace stretto
