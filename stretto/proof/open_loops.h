// Loops over slots of pipes whose number of iterations goes by the sizes, where masks are left open
// (size_masks.h): attention goes over as many keys as there are. How often they run need not be
// decided, so it cuts no sizes into pieces, and no iteration is walked.
//
// Such a loop, or a condition around one that counts what it does, only passes slots and reads. The
// graph leaves its slots out, and one box stands for what all of its iterations read. That launches
// end all the same is shown in two steps: each such loop of a worker by itself, with all agents
// that take part in it, for every number of iterations; and the launch with a meeting of those
// agents in place of each loop, which is more waiting than the loop asks for.
// docs/decisions/0033-loops-that-sizes-end.md has the argument. What does not fit is walked.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "stretto/proof/expand_accesses.h"
#include "stretto/proof/expand_state.h"
#include "stretto/proof/expand_syncs.h"

namespace stretto {

// Whether agents [first, ...) of the graph come to their ends, waiting for nobody else.
bool come_through(const InstanceGraph& graph, std::size_t first);

class OpenLoops {
 public:
  OpenLoops(ExpandState& state, SyncExpander& syncs, AccessExpander& accesses);

  void start_worker(const Role& role);
  void start_agent();
  // A variable has got the value of `definition`.
  void let(int var, const Expr& definition);
  // False where the operation is no such loop: it has to be walked. DependsOnTable where it would
  // have to be walked elsewhere, too.
  bool take(const Op& op);
  // DependsOnTable where the agents do not go through the same loops, or may get stuck in one.
  void finish_worker();

 private:
  // How an operation is written.
  struct Shape {
    bool fits = false;
    std::vector<std::pair<const Op*, const Op*>> reads;  // with the loop around it, or none
    std::vector<const Op*> loops;
    std::set<int> pipes, puts, gets;  // of which it moves slots, and how
    std::set<int> used, got;          // registers: operands, and those that get a slot
    std::int64_t passes = 0;          // of slots, in loops
  };
  // Values by how they are written, from the sizes on: equal numbers are equal values.
  struct Term {
    ExprOp op;
    std::int64_t value;  // of a constant; which size; kBegin, kEnd
    std::vector<int> args;
    friend auto operator<=>(const Term&, const Term&) = default;
  };
  // Where the loops of an operation begin, unless they do at constants, and end. How often it does
  // anything goes by the end, or by the distance between the two.
  struct Bounds {
    int begin = -1, end = -1;  // terms
    friend auto operator<=>(const Bounds&, const Bounds&) = default;
  };
  struct Part {
    int agent;
    const Op* op;
    std::vector<int> counts;
    bool open_begin;
    friend auto operator<=>(const Part&, const Part&) = default;
  };
  struct SlotRead {
    int pipe;
    std::size_t access;  // of its agent
  };
  // An agent's way through one.
  struct Visit {
    const Op* op;
    Bounds bounds;
    std::vector<int> counts;  // terms of both bounds of its loops, or sides of its condition
    std::vector<SizeForm> there;
    std::int64_t tile;
    int pos;  // events of the agent before what follows
    std::vector<SlotRead> reads;
  };

  const Shape& shape_of(const Op& op);
  bool fits(const Block& block, const Op* loop, Shape& shape) const;
  bool goes_by_sizes(const Expr& expr) const;
  void find_sized(const Block& block);
  bool may_take_part(const Block& block);
  int term(Term term);
  std::optional<int> term_of(const Expr& expr);
  std::int64_t at_sample(int term);
  bool not_negative(const Expr& expr);
  std::optional<std::int64_t> least(int term) const;
  std::optional<Bounds> bounds_of(const Op& op, const Shape& shape);
  // What a bound is, in terms of these.
  std::optional<int> count(const Expr& expr, const Bounds& bounds);
  std::optional<std::vector<int>> counts(const Op& op, const Shape& shape, const Bounds& bounds);
  void read(const Op& op, const Op* loop, Visit& visit);

  // Of a count: how it moves where begin and end do by as much, whether in proportion to them, and
  // by which numbers it is divided.
  struct Nature {
    int shift = 0;
    bool linear = true;
    std::int64_t most = 0, period = 1;  // the largest constant; the product of divisors
  };
  Nature nature(int count, bool open_begin) const;
  std::int64_t value_at(int count, std::int64_t n) const;
  // Whether all agents come through, each with its operation, whatever the number.
  void check(const std::vector<Part>& parts);
  // That its counts go on, from n on, as they did in the period before.
  void check_goes_on(const Part& part, std::int64_t n, std::int64_t period) const;
  bool ends(const std::vector<Part>& parts, std::int64_t n, ExpandState& state,
            SyncExpander& syncs);
  void walk(const Op& op, std::int64_t n, const Part& part, SyncExpander& syncs);
  void walk(const Block& block, std::int64_t n, const Part& part, SyncExpander& syncs);
  // The loops, and the condition around them: what an operation's counts are of, in turn.
  static std::vector<const Op*> counted(const Op& op, const Shape& shape);

  ExpandState& state_;
  SyncExpander& syncs_;
  AccessExpander& accesses_;
  std::set<int> sized_;  // variables
  std::map<const Op*, Shape> shapes_;
  std::map<Term, int> term_ids_;
  std::vector<Term> terms_;
  std::set<std::vector<Part>> checked_;

  // The worker.
  const Role* role_ = nullptr;
  bool may_ = false;
  int agent_ = -1;
  std::map<int, int> let_;                  // terms of its variables
  std::set<int> parties_;                   // agents
  std::vector<std::vector<Visit>> visits_;  // by agent
};

}  // namespace stretto
