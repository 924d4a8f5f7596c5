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
//
// Loops that a table ends are taken in the same way, where the graph stands for every table and all
// that they read are a rank's own inputs (docs/decisions/0041-what-tables-decide-by-pattern.md).
// What they read is then looked at by who asks.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <map>
#include <optional>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include "stretto/proof/expand_accesses.h"
#include "stretto/proof/expand_state.h"
#include "stretto/proof/expand_syncs.h"

namespace stretto {

// Whether agents [first, ...) of the graph come to their ends, waiting for nobody else.
bool come_through(const InstanceGraph& graph, std::size_t first);
// Of a graph in which a worker is looked at again and again: its agents, and counters past so many.
void forget_worker(InstanceGraph& graph, std::size_t num_counters);

// How loops over slots that tables end are taken: not at all; whole; or those over tiles of a part
// around them as well, as where the tiles of a long sequence take turns.
enum class TableLoops : std::uint8_t { kNone, kWhole, kTurns };

// Loops of a program that agents have been shown to come through, by how they are written and
// counted. That is so at all sizes, so no later walk has to show it again.
class LoopsShown {
 public:
  using Key = std::vector<std::int64_t>;
  bool has(const Key& loop) const { return loops_.count(loop) != 0; }
  void add(const Key& loop) { loops_.insert(loop); }

 private:
  std::set<Key> loops_;
};

class OpenLoops {
 public:
  // Of loops that tables end the graph is for one vector of sizes. Where some of those do not fit,
  // DependsOnTable: all of them are looked at in another way then (trip_counts.h).
  // `shown`: of other walks of the program; or null.
  OpenLoops(ExpandState& state, SyncExpander& syncs, AccessExpander& accesses, TableLoops mode,
            LoopsShown* shown = nullptr);

  void start_worker(const Role& role);
  void start_agent();
  // Whether any agent of the worker has such loops.
  bool any_take_part() const { return !parties_.empty(); }
  // A variable has got the value of `definition`.
  void let(int var, const Expr& definition);
  // The loop's variable has any of several values from here on.
  void forget(int var) { let_.erase(var); }
  // False where the operation is no such loop: it has to be walked. DependsOnTable where it would
  // have to be walked elsewhere, too. `read_all`: writes down what a loop that a table ends reads.
  bool take(const Op& op, const std::function<void()>& read_all);
  // Whether a loop is one in which tiles take turns (open_turns.cc). Then come, in the order of its
  // body, the condition that is around the rest of it, if there is one, and what take() would take;
  // at the end everybody has met.
  bool may_take_turns(const Op& loop);
  void begin_turns(const Op& loop);
  void turns_if(const Expr& condition);
  void take_in_turn(const Op& op);
  void end_turns(const Op& loop);
  bool is_taken_in_turn(const Op& op) { return shape_of(op).fits; }
  // The slots that it passes, where it is written as one that sizes end; or null.
  const std::set<int>* slots_of_loop(const Op& op);
  // Of agents of which so many meet, in place of such loops, this one for the `meeting`-th time.
  void meet_instead(const Op& op, std::int64_t parties, std::int64_t meeting, SyncExpander& syncs);
  // The loop reads registers that it gets no slots in; none of them may hold a released one.
  void read_registers(const Op& op, SyncExpander& syncs);
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
  // Terms, as many as an entry of a table has indices.
  class Args {
   public:
    Args() = default;
    Args(std::initializer_list<int> terms) {
      for (int t : terms) push_back(t);
    }
    void push_back(int term) { terms_.at(size_++) = term; }
    std::size_t size() const { return size_; }
    int operator[](std::size_t i) const { return terms_[i]; }
    const int* begin() const { return terms_.data(); }
    const int* end() const { return terms_.data() + size_; }
    friend bool operator==(const Args& a, const Args& b) {
      return a.size_ == b.size_ && std::equal(a.begin(), a.end(), b.begin());
    }

   private:
    std::array<int, kMaxTensorDims> terms_{};
    std::size_t size_ = 0;
  };
  // Values by how they are written, from the sizes on: equal numbers are equal values.
  struct Term {
    ExprOp op;
    std::int64_t value;  // of a constant; which size; kBegin, kEnd
    Args args;
    friend bool operator==(const Term&, const Term&) = default;
  };
  struct TermHash {
    std::size_t operator()(const Term& t) const;
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
  struct Inner {
    const Op* op;
    Bounds bounds;
    std::vector<int> counts;
  };
  struct Visit {
    const Op* op;
    Bounds bounds;
    std::vector<int> counts;  // terms of both bounds of its loops, or sides of its condition
    std::vector<SizeForm> there;
    int choice;
    std::int64_t tile;
    int pos;  // events of the agent before what follows
    std::vector<SlotRead> reads;
    bool turns = false;
    int condition = -1;        // of turns: a term
    std::vector<Inner> inner;  // of turns: what is taken in each
  };
  // Of a loop in which tiles take turns: the body, or what is under its only condition.
  struct TurnsShape {
    bool fits = false;
    const Block* body = nullptr;
    std::set<int> pipes, used, got;
  };

  const Shape& shape_of(const Op& op);
  const TurnsShape& turns_of(const Op& loop);
  bool fit_turns(const Block& block, TurnsShape& shape);
  void finish_turns(std::size_t k);
  void check_turns(const std::vector<std::pair<int, const Op*>>& parts);
  bool turns_end(const std::vector<std::pair<int, const Op*>>& parts, std::int64_t n,
                 ExpandState& state, SyncExpander& syncs);
  void walk_turn(const Block& block, std::int64_t& meetings, std::size_t parties,
                 SyncExpander& syncs);
  void use_slots(const Op& op, SyncExpander& syncs);
  bool fits(const Block& block, const Op* loop, Shape& shape) const;
  bool goes_by_sizes(const Expr& expr) const;
  void find_sized(const Block& block);
  bool may_take_part(const Block& block);
  int term(const Term& term);
  void grow_term_ids();
  void describe(int term, LoopsShown::Key& key) const;
  LoopsShown::Key key_of_loop(const std::vector<Part>& parts) const;
  std::optional<int> term_of(const Expr& expr);
  std::optional<int> term_of_table(const ExprNode& entry);
  bool starts_known(const Shape& shape);
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
  void walk(const std::vector<const Op*>& steps, std::int64_t n, const Part& part,
            SyncExpander& syncs);
  // Of a body of the operation: what moves or reads slots, and what has a body. The rest does
  // nothing to them, since no other register than those of its gets holds one (ends()).
  const std::vector<const Op*>& steps_of(const Block& body, const Op& op);
  // The loops, and the condition around them: what an operation's counts are of, in turn.
  static std::vector<const Op*> counted(const Op& op, const Shape& shape);

  ExpandState& state_;
  SyncExpander& syncs_;
  AccessExpander& accesses_;
  const bool of_tables_, turns_;
  std::set<int> sized_;  // variables; of tables: those that go by one
  std::map<const Op*, Shape> shapes_;
  std::map<const Op*, TurnsShape> turns_shapes_;
  std::set<std::vector<std::pair<int, const Op*>>> checked_turns_;
  std::map<std::pair<const Block*, const Op*>, std::vector<const Op*>> steps_;
  std::vector<Term> terms_;
  // Numbers of terms by their hash, at or behind it, or -1; at most half of them taken. Some tens
  // of millions of terms are looked up where a program is large.
  std::vector<int> term_ids_;
  LoopsShown own_shown_;
  LoopsShown* shown_;

  // The worker.
  const Role* role_ = nullptr;
  bool may_ = false;
  int agent_ = -1;
  std::map<int, int> let_;                  // terms of its variables
  std::set<int> parties_;                   // agents
  std::vector<std::vector<Visit>> visits_;  // by agent
};

}  // namespace stretto
