#include "stretto/proof/mutation/exploration.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <map>
#include <unordered_set>
#include <vector>

#include "stretto/base/at.h"
#include "stretto/base/errors.h"

namespace stretto {
namespace {

enum Stage : std::uint8_t { kBetween, kStarting, kRunning, kEnding };

// What one agent does between two synchronisation events. The caller of a rank is an agent with
// one interval.
struct Interval {
  int rank = 0;
  std::string who;
  std::vector<Access> accesses;
};

struct ActiveInterval {
  int interval;
  int launch;
};

class Explorer {
 public:
  Explorer(const InstanceGraph& graph, const ExplorationOptions& options)
      : graph_(graph), options_(options), world_(graph.program->world_size) {
    for (const Counter& c : graph.counters) {
      if (c.kind != CounterKind::kSignal) throw UserError("explore: pipes and barriers");
    }
    number_intervals();
  }

  Exploration run() {
    for (int a = 0; a < num_agents(); ++a) check_turns(a);
    if (out_.failure.empty()) all_states();
    if (out_.failure.empty() && out_.complete) one_execution();
    return std::move(out_);
  }

 private:
  // Per rank: launch, stage; then one cursor per agent.
  using State = std::basic_string<char>;

  int launch(const State& s, int rank) const { return s[at(2 * rank)]; }
  int stage(const State& s, int rank) const { return s[at(2 * rank + 1)]; }
  int cursor(const State& s, int agent) const { return s[at(2 * world_ + agent)]; }
  static void set(State& s, int i, int value) { s[at(i)] = static_cast<char>(value); }
  const AgentTrace& trace(int agent) const { return graph_.agents[at(agent)]; }
  int num_agents() const { return static_cast<int>(graph_.agents.size()); }
  bool is_over(const State& s, int agent) const {
    return cursor(s, agent) == static_cast<int>(trace(agent).syncs.size());
  }

  State initial() const { return State(at(2 * world_ + num_agents()), '\0'); }

  void number_intervals() {
    for (int a = 0; a < num_agents(); ++a) {
      first_interval_.push_back(static_cast<int>(intervals_.size()));
      const AgentTrace& t = trace(a);
      for (std::size_t p = 0; p <= t.syncs.size(); ++p) {
        intervals_.push_back({.rank = t.rank, .who = describe_agent(graph_, a, -1)});
      }
      for (const Access& access : t.accesses) {
        intervals_[at(first_interval_.back() + access.pos)].accesses.push_back(access);
      }
      for (const Sync& s : t.syncs) {
        if (s.kind == SyncKind::kPacketLoad || s.kind == SyncKind::kPacketStore) {
          throw UserError("explore: packets");
        }
      }
    }
    for (int r = 0; r < world_; ++r) {
      caller_.push_back(static_cast<int>(intervals_.size()));
      intervals_.push_back({.rank = r, .who = fmt::format("the caller (rank {})", r)});
    }
    conflict_.assign(intervals_.size() * intervals_.size(), Distances{});
  }

  // --- states ---
  void all_states() {
    std::unordered_set<State> seen = {initial()};
    std::vector<State> open = {initial()};
    bool finished = false;
    while (!open.empty() && out_.failure.empty()) {
      State s = std::move(open.back());
      open.pop_back();
      if (++out_.num_states > options_.max_states) {
        out_.complete = false;
        return;
      }
      look_for_races(s);
      bool moved = false;
      successors(s, [&](State next) {
        moved = true;
        if (seen.insert(next).second) open.push_back(std::move(next));
      });
      if (moved) continue;
      if (is_final(s)) {
        finished = true;
      } else if (out_.failure.empty()) {
        out_.failure = "deadlock";
      }
    }
    STRETTO_CHECK(finished || !out_.failure.empty(), "an exploration ends somewhere");
  }

  bool is_final(const State& s) const {
    for (int r = 0; r < world_; ++r) {
      if (launch(s, r) < options_.launches) return false;
    }
    return true;
  }

  void successors(const State& s, const std::function<void(State)>& visit) const {
    std::vector<std::int64_t> counters = values(s);
    for (int r = 0; r < world_; ++r) {
      int first = graph_.first_agent[at(r)], last = graph_.first_agent[at(r + 1)];
      if (stage(s, r) == kBetween) {
        if (launch(s, r) == options_.launches) continue;
        visit(moved_to(s, r, kStarting));
      } else if (stage(s, r) == kStarting) {
        is_over(s, first) ? visit(moved_to(s, r, kRunning)) : advance(s, first, counters, visit);
      } else if (stage(s, r) == kRunning) {
        bool over = true;
        for (int a = first + 2; a < last; ++a) {
          if (is_over(s, a)) continue;
          over = false;
          advance(s, a, counters, visit);
        }
        if (over) visit(moved_to(s, r, kEnding));
      } else if (!is_over(s, first + 1)) {
        advance(s, first + 1, counters, visit);
      } else {
        State next = moved_to(s, r, kBetween);
        set(next, 2 * r, launch(s, r) + 1);
        for (int a = first; a < last; ++a) set(next, 2 * world_ + a, 0);
        visit(std::move(next));
      }
    }
  }

  State moved_to(const State& s, int rank, Stage to) const {
    State next = s;
    set(next, 2 * rank + 1, to);
    return next;
  }

  void advance(const State& s, int agent, const std::vector<std::int64_t>& counters,
               const std::function<void(State)>& visit) const {
    const Sync& sync = trace(agent).syncs[at(cursor(s, agent))];
    if (sync.kind == SyncKind::kWait) {
      std::int64_t base = launch(s, trace(agent).rank) * graph_.quota[at(sync.counter)];
      if (counters[at(sync.counter)] < base + sync.amount) return;
    }
    State next = s;
    set(next, 2 * world_ + agent, cursor(s, agent) + 1);
    visit(std::move(next));
  }

  // What every counter has got so far.
  std::vector<std::int64_t> values(const State& s) const {
    std::vector<std::int64_t> out(graph_.counters.size(), 0);
    for (int a = 0; a < num_agents(); ++a) {
      const auto& syncs = trace(a).syncs;
      int done = launch(s, trace(a).rank);
      for (std::size_t p = 0; p < syncs.size(); ++p) {
        if (syncs[p].kind != SyncKind::kNotify) continue;
        bool in_this = static_cast<int>(p) < cursor(s, a);
        out[at(syncs[p].counter)] += syncs[p].amount * (done + (in_this ? 1 : 0));
      }
    }
    return out;
  }

  // --- races ---
  std::vector<ActiveInterval> active(const State& s) const {
    std::vector<ActiveInterval> out;
    for (int r = 0; r < world_; ++r) {
      int first = graph_.first_agent[at(r)], last = graph_.first_agent[at(r + 1)];
      int e = launch(s, r);
      auto add = [&](int a) { out.push_back({first_interval_[at(a)] + cursor(s, a), e}); };
      if (stage(s, r) == kBetween) out.push_back({caller_[at(r)], e});
      if (stage(s, r) == kStarting) add(first);
      if (stage(s, r) == kEnding) add(first + 1);
      if (stage(s, r) != kRunning) continue;
      for (int a = first + 2; a < last; ++a) add(a);
    }
    return out;
  }

  void look_for_races(const State& s) {
    std::vector<ActiveInterval> now = active(s);
    for (std::size_t i = 0; i < now.size(); ++i) {
      for (std::size_t j = i + 1; j < now.size(); ++j) {
        if (!conflict(now[i], now[j])) continue;
        out_.failure = fmt::format("race between {} in launch {} and {} in launch {}",
                                   intervals_[at(now[i].interval)].who, now[i].launch,
                                   intervals_[at(now[j].interval)].who, now[j].launch);
        return;
      }
    }
  }

  // Between two of an agent's events its threads do not wait for each other. Of one element they
  // keep their turn where the same thread stores it both times.
  void check_turns(int agent) {
    const AgentTrace& t = trace(agent);
    bool threads =
        t.role < 0 || graph_.program->roles[at(t.role)].resource.kind == ResourceKind::kSm;
    for (std::size_t i = 0; threads && i < t.accesses.size(); ++i) {
      for (std::size_t j = i + 1; j < t.accesses.size(); ++j) {
        const Access &x = t.accesses[i], &y = t.accesses[j];
        bool stores = x.op->code == OpCode::kStore && y.op->code == OpCode::kStore;
        bool open = y.kind != AccessKind::kRead && x.pos == y.pos && !stores && same_memory(x, y);
        if (open) out_.failure = describe_agent(graph_, agent, y.tile) + " writes out of turn";
      }
    }
  }

  bool same_memory(const Access& x, const Access& y) const {
    return x.tensor == y.tensor && x.rank == y.rank &&
           overlaps(graph_.boxes[at(x.box)], graph_.boxes[at(y.box)]);
  }

  // Which launch distances make two intervals conflict, as bits; found once.
  struct Distances {
    bool known = false;
    std::uint64_t bits = 0;
  };

  bool conflict(const ActiveInterval& a, const ActiveInterval& b) {
    Distances& known = conflict_[at(a.interval) * intervals_.size() + at(b.interval)];
    if (!known.known) {
      known.known = true;
      for (int d = 0; d <= options_.launches; ++d) {
        if (conflict_at(a.interval, b.interval, d)) {
          known.bits |= 1ull << d;
        }
      }
    }
    return (known.bits >> std::abs(a.launch - b.launch) & 1) != 0;
  }

  bool conflict_at(int a, int b, int distance) const {
    if (is_caller(a) || is_caller(b)) return touches_caller(a, b) || touches_caller(b, a);
    for (const Access& x : intervals_[at(a)].accesses) {
      for (const Access& y : intervals_[at(b)].accesses) {
        if (!same_memory(x, y) || (x.kind == AccessKind::kRead && y.kind == AccessKind::kRead))
          continue;
        const Tensor& t = graph_.program->tensors[at(x.tensor)];
        if (t.kind != TensorKind::kBuffer || distance % t.num_slots == 0) return true;
      }
    }
    return false;
  }

  bool is_caller(int interval) const { return interval >= caller_[0]; }

  // The caller owns everything but the buffers of its rank.
  bool touches_caller(int caller, int other) const {
    if (!is_caller(caller)) return false;
    const auto& accesses = intervals_[at(other)].accesses;
    return std::any_of(accesses.begin(), accesses.end(), [&](const Access& x) {
      TensorKind kind = graph_.program->tensors[at(x.tensor)].kind;
      return x.rank == intervals_[at(caller)].rank && kind != TensorKind::kBuffer;
    });
  }

  // --- coverage ---
  // Where nothing races, every execution makes conflicting accesses in the same order: one is
  // enough.
  using Key = std::tuple<int, int, int>;  // launch, tensor, rank
  void one_execution() {
    State s = initial();
    std::vector<int> done(intervals_.size(), 0);  // launches in which the interval was made
    while (!is_final(s) && out_.failure.empty()) {
      for (const ActiveInterval& i : active(s)) {
        if (done[at(i.interval)] > i.launch) continue;
        done[at(i.interval)] = i.launch + 1;
        make(intervals_[at(i.interval)], i.launch);
      }
      bool first = true;
      State next;
      successors(s, [&](State n) {
        if (first) next = std::move(n);
        first = false;
      });
      s = std::move(next);
    }
    for (int e = 0; e < options_.launches; ++e) check_outputs(e);
    for (int a = 0; a < num_agents() && out_.failure.empty(); ++a) check_read_back(a);
  }

  std::int64_t num_elements_of(int tensor) const { return num_elements(graph_.shapes[at(tensor)]); }

  void for_each_element(const Access& x, const std::function<void(std::int64_t)>& visit) const {
    const Box& box = graph_.boxes[at(x.box)];
    const auto& shape = graph_.shapes[at(x.tensor)];
    std::function<void(std::size_t, std::int64_t)> dim = [&](std::size_t d, std::int64_t base) {
      if (d == shape.size()) return visit(base);
      for (std::int64_t i = box.lo[d]; i < box.hi[d]; ++i) dim(d + 1, base * shape[d] + i);
    };
    dim(0, 0);
  }

  std::vector<int>& written(int e, int tensor, int rank) {
    auto& counts = written_[{e, tensor, rank}];
    counts.resize(at(num_elements_of(tensor)));
    return counts;
  }

  void make(const Interval& interval, int e) {
    for (const Access& x : interval.accesses) {
      auto& counts = written(e, x.tensor, x.rank);
      bool is_input = graph_.program->tensors[at(x.tensor)].kind == TensorKind::kInput;
      for_each_element(x, [&](std::int64_t i) {
        if (x.kind == AccessKind::kWrite) ++counts[at(i)];
        if (x.kind == AccessKind::kRead && !is_input && counts[at(i)] == 0) {
          out_.failure = interval.who + " reads what nobody has written";
        }
      });
    }
  }

  void check_outputs(int e) {
    for (std::size_t t = 0; t < graph_.program->tensors.size(); ++t) {
      if (graph_.program->tensors[t].kind != TensorKind::kOutput) continue;
      for (int r = 0; r < world_; ++r) {
        const int needed = is_given(*graph_.program, static_cast<int>(t), r) ? 1 : 0;
        for (int count : written(e, static_cast<int>(t), r)) {
          if (count != needed) out_.failure = fmt::format("an output is written {} times", count);
        }
      }
    }
  }

  // An agent sees its own write only after a fence, or after its own notify has come back to it,
  // which a wait in between leaves open.
  void check_read_back(int agent) {
    const AgentTrace& t = trace(agent);
    for (std::size_t i = 0; i < t.accesses.size(); ++i) {
      for (std::size_t j = i + 1; j < t.accesses.size(); ++j) {
        const Access &x = t.accesses[i], &y = t.accesses[j];
        bool reads_back =
            x.kind == AccessKind::kWrite && y.kind == AccessKind::kRead && same_memory(x, y);
        auto between = [&](SyncKind kind) {
          return std::any_of(t.syncs.begin() + x.pos, t.syncs.begin() + y.pos,
                             [&](const Sync& s) { return s.kind == kind; });
        };
        if (!reads_back || between(SyncKind::kFence)) continue;
        if (between(SyncKind::kWait)) {
          out_.complete = false;
        } else {
          out_.failure = describe_agent(graph_, agent, y.tile) + " reads its own write";
        }
      }
    }
  }

  const InstanceGraph& graph_;
  const ExplorationOptions& options_;
  int world_;
  std::vector<Interval> intervals_;
  std::vector<int> first_interval_;  // per agent
  std::vector<int> caller_;          // per rank; the callers' intervals come last
  std::vector<Distances> conflict_;
  std::map<Key, std::vector<int>> written_;
  Exploration out_;
};

}  // namespace

Exploration explore(const InstanceGraph& graph, const ExplorationOptions& options) {
  return Explorer(graph, options).run();
}

}  // namespace stretto
