#include "stretto/proof/timeline.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <span>

#include "stretto/base/at.h"
#include "stretto/proof/time_limit.h"

namespace stretto {
namespace {

class Runner {
 public:
  explicit Runner(const Timeline& timeline) : timeline_(timeline), graph_(timeline.launch(0)) {
    num_agents_ = static_cast<int>(graph_.agents.size());
    cursor_.resize(at(num_agents_), 0);
    value_.resize(graph_.counters.size(), 0);
    waiters_.resize(graph_.counters.size());
    base_.resize(at(timeline.num_launches() + 1), std::vector<std::int64_t>(value_.size(), 0));
    for (int e = 0; e < timeline.num_launches(); ++e) {
      for (std::size_t c = 0; c < value_.size(); ++c) {
        base_[at(e + 1)][c] = base_[at(e)][c] + timeline.launch(e).quota[c];
      }
    }
    index_packets();
  }

  Execution run() {
    int world = graph_.program->world_size;
    launch_.resize(at(world), 0);
    running_.resize(at(world), 0);
    for (int r = 0; r < world; ++r) ready_.push_back(graph_.first_agent[at(r)]);
    while (!ready_.empty()) {
      int agent = ready_.front();
      ready_.pop_front();
      advance(agent);
    }
    out_.finished = std::all_of(launch_.begin(), launch_.end(),
                                [&](int e) { return e == timeline_.num_launches(); });
    if (!out_.finished) explain();
    return std::move(out_);
  }

 private:
  // An agent's event at `pos` that is a load of packets, or a store that serves one.
  struct PacketUse {
    int pos, load;  // index into packet_loads
    friend auto operator<=>(const PacketUse&, const PacketUse&) = default;
  };
  // Of a launch, each agent's in program order.
  struct Packets {
    std::vector<std::vector<PacketUse>> loads, stores;
    std::vector<int> missing;  // per load: stores that have to come
  };

  int launch_of(int agent) const { return launch_[at(graph_.agents[at(agent)].rank)]; }

  // Launches alike share them.
  void index_packets() {
    std::map<const InstanceGraph*, std::shared_ptr<const Packets>> known;
    for (const InstanceGraph* launch : timeline_.launches) {
      auto [it, is_new] = known.try_emplace(launch);
      if (is_new) it->second = std::make_shared<const Packets>(packets_of(*launch));
      packets_.push_back(it->second);
      missing_.push_back(it->second->missing);
    }
  }

  static Packets packets_of(const InstanceGraph& graph) {
    Packets out;
    out.loads.resize(graph.agents.size());
    out.stores.resize(graph.agents.size());
    for (std::size_t l = 0; l < graph.packet_loads.size(); ++l) {
      const PacketLoad& load = graph.packet_loads[l];
      out.loads[at(load.agent)].push_back({load.pos, static_cast<int>(l)});
      for (const auto& s : load.stores) {
        out.stores[at(s.agent)].push_back({s.pos, static_cast<int>(l)});
      }
      out.missing.push_back(static_cast<int>(load.stores.size()) + (load.covered ? 0 : 1));
    }
    for (auto* all : {&out.loads, &out.stores}) {
      for (auto& uses : *all) std::sort(uses.begin(), uses.end());
    }
    return out;
  }

  static std::span<const PacketUse> uses_at(const std::vector<PacketUse>& uses, int pos) {
    auto by_pos = [](const PacketUse& use, int p) { return use.pos < p; };
    auto first = std::lower_bound(uses.begin(), uses.end(), pos, by_pos);
    return {first, std::lower_bound(first, uses.end(), pos + 1, by_pos)};
  }

  // -1: it waits for none.
  int packet_load(int agent, int pos, int launch) const {
    auto uses = uses_at(packets_[at(launch)]->loads[at(agent)], pos);
    return uses.empty() ? -1 : uses.front().load;
  }

  std::int64_t threshold(const Sync& s, int launch) const {
    return base_[at(launch)][at(s.counter)] + s.amount;
  }

  bool blocks(int agent, const Sync& s, int pos, int launch) {
    if (s.kind == SyncKind::kWait && value_[at(s.counter)] < threshold(s, launch)) {
      waiters_[at(s.counter)].push_back(agent);
      return true;
    }
    if (s.kind != SyncKind::kPacketLoad) return false;
    int load = packet_load(agent, pos, launch);
    if (load < 0 || missing_[at(launch)][at(load)] == 0) return false;
    packet_waiters_[{launch, load}] = agent;
    return true;
  }

  void signal(int agent, const Sync& s, int pos, int launch) {
    if (s.kind == SyncKind::kNotify) {
      value_[at(s.counter)] += s.amount;
      for (int w : waiters_[at(s.counter)]) ready_.push_back(w);
      waiters_[at(s.counter)].clear();
    } else if (s.kind == SyncKind::kPacketStore) {
      for (auto [p, load] : uses_at(packets_[at(launch)]->stores[at(agent)], pos)) {
        if (--missing_[at(launch)][at(load)] > 0) continue;
        auto waiter = packet_waiters_.find({launch, load});
        if (waiter != packet_waiters_.end()) ready_.push_back(waiter->second);
      }
    }
  }

  void advance(int agent) {
    int e = launch_of(agent);
    const AgentTrace& trace = timeline_.trace(agent, e);
    int begin = cursor_[at(agent)], pos = begin;
    while (pos < static_cast<int>(trace.syncs.size())) {
      const Sync& s = trace.syncs[at(pos)];
      TimeLimit::look();
      if (blocks(agent, s, pos, e)) break;
      signal(agent, s, pos, e);
      ++pos;
    }
    cursor_[at(agent)] = pos;
    bool done = pos == static_cast<int>(trace.syncs.size());
    if (pos > begin || done) out_.steps.push_back({agent, e, begin, pos});
    if (done) finish(trace);
  }

  // start -> on_start -> roles -> on_end -> start of the next launch.
  void finish(const AgentTrace& trace) {
    int first = graph_.first_agent[at(trace.rank)], last = graph_.first_agent[at(trace.rank + 1)];
    int& running = running_[at(trace.rank)];
    if (trace.phase == Phase::kStart) {
      running = last - first - 2;
      for (int a = first + 2; a < last; ++a) ready_.push_back(a);
      if (running == 0) ready_.push_back(first + 1);
    } else if (trace.phase == Phase::kRoles) {
      if (--running == 0) ready_.push_back(first + 1);
    } else {
      for (int a = first; a < last; ++a) cursor_[at(a)] = 0;
      if (++launch_[at(trace.rank)] < timeline_.num_launches()) ready_.push_back(first);
    }
  }

  // --- why nothing moves ---
  struct Blocked {
    const Sync* sync = nullptr;
    std::vector<int> suppliers;  // blocked agents that would notify later
  };

  void explain() {
    std::map<int, Blocked> blocked;
    for (std::size_t c = 0; c < waiters_.size(); ++c) {
      for (int a : waiters_[c]) blocked[a].sync = &pending(a);
    }
    for (const auto& [key, a] : packet_waiters_) {
      if (!finished_launch(a, key.first)) blocked[a].sync = &pending(a);
    }
    for (auto& [agent, b] : blocked) b.suppliers = suppliers(agent, *b.sync);
    out_.stuck = why(blocked);
  }

  bool finished_launch(int agent, int launch) const {
    return launch_of(agent) != launch ||
           cursor_[at(agent)] >= static_cast<int>(timeline_.trace(agent, launch).syncs.size());
  }

  const Sync& pending(int agent) const {
    return timeline_.trace(agent, launch_of(agent)).syncs[at(cursor_[at(agent)])];
  }

  // The blocked agents whose remaining events, or whose rank's later phases, notify the counter.
  std::vector<int> suppliers(int waiter, const Sync& s) {
    std::vector<int> out;
    for (int a = 0; a < num_agents_; ++a) {
      int e = launch_of(a);
      if (e == timeline_.num_launches()) continue;
      if (!feeds(waiter, s, a, e)) continue;
      for (int blocker : blockers_of(a)) out.push_back(blocker);
    }
    std::sort(out.begin(), out.end());
    out.erase(std::unique(out.begin(), out.end()), out.end());
    return out;
  }

  bool feeds(int waiter, const Sync& s, int a, int e) const {
    const AgentTrace& t = timeline_.trace(a, e);
    for (std::size_t i = at(cursor_[at(a)]); i < t.syncs.size(); ++i) {
      if (s.kind == SyncKind::kWait) {
        if (t.syncs[i].kind == SyncKind::kNotify && t.syncs[i].counter == s.counter) return true;
        continue;
      }
      int waits_for = packet_load(waiter, cursor_[at(waiter)], e);
      if (waits_for < 0 || e != launch_of(waiter)) return false;
      const PacketLoad& load = timeline_.launch(e).packet_loads[at(waits_for)];
      for (const auto& store : load.stores) {
        if (store.agent == a && store.pos == static_cast<int>(i)) return true;
      }
    }
    return false;
  }

  // The agents that keep `a` from going on: itself, or those of the phase before it.
  std::vector<int> blockers_of(int a) const {
    const AgentTrace& t = graph_.agents[at(a)];
    int first = graph_.first_agent[at(t.rank)], last = graph_.first_agent[at(t.rank + 1)];
    bool start_done = !is_waiting(first);
    if (t.phase == Phase::kStart) return {a};
    if (!start_done) return {first};
    if (t.phase == Phase::kRoles) return {a};
    std::vector<int> out;
    for (int r = first + 2; r < last; ++r) {
      if (is_waiting(r)) out.push_back(r);
    }
    if (out.empty()) out.push_back(a);
    return out;
  }

  bool is_waiting(int a) const {
    int e = launch_of(a);
    return e < timeline_.num_launches() &&
           cursor_[at(a)] < static_cast<int>(timeline_.trace(a, e).syncs.size());
  }

  // From a blocked agent of the earliest launch, since what a later one lacks may be no more than
  // that this one does not end; along those that would bring what is waited for.
  std::string why(const std::map<int, Blocked>& blocked) {
    if (blocked.empty()) return "no agent is blocked, yet the launch does not end";
    auto first =
        std::min_element(blocked.begin(), blocked.end(), [&](const auto& a, const auto& b) {
          return std::pair(launch_of(a.first), !a.second.suppliers.empty()) <
                 std::pair(launch_of(b.first), !b.second.suppliers.empty());
        });
    std::vector<int> path;
    int agent = first->first;
    const int launch = launch_of(agent);
    while (std::find(path.begin(), path.end(), agent) == path.end()) {
      const Blocked& b = blocked.at(agent);
      auto supplier = std::find_if(b.suppliers.begin(), b.suppliers.end(), [&](int other) {
        return launch_of(other) == launch && blocked.count(other) != 0;
      });
      if (supplier == b.suppliers.end()) {
        note_choice(agent, *b.sync);
        return describe(agent, *b.sync) + "\n    nobody is left to bring it there";
      }
      path.push_back(agent);
      agent = *supplier;
    }
    path.erase(path.begin(), std::find(path.begin(), path.end(), agent));
    std::string text = "a cycle of waits:";
    for (int a : path) {
      const Sync& sync = *blocked.at(a).sync;
      text += "\n    " + describe(a, sync);
      note_choice(a, sync);
    }
    return text;
  }

  void note_choice(int agent, const Sync& s) {
    if (s.choice == TableChoices::kAlways) return;
    out_.stuck_choices.emplace_back(graph_.agents[at(agent)].rank, s.choice);
  }

  std::string describe(int agent, const Sync& s) const {
    int e = launch_of(agent);
    std::string who = describe_agent(timeline_.launch(e), agent, s.tile);
    if (s.kind == SyncKind::kPacketLoad) {
      return fmt::format("{}: {} in launch {} waits for packets", describe_loc(s.op), who, e);
    }
    std::string where;
    if (s.choice != TableChoices::kAlways) {
      where = ", where " + graph_.choices->describe(*graph_.program, s.choice);
    }
    return fmt::format("{}: {} in launch {} waits for {} to reach {}{}; it stays at {}",
                       describe_loc(s.op), who, e, describe_counter(graph_, s.counter), s.amount,
                       where, value_[at(s.counter)] - base_[at(e)][at(s.counter)]);
  }

  const Timeline& timeline_;
  const InstanceGraph& graph_;
  int num_agents_ = 0;
  std::vector<int> cursor_;   // per agent: events done in its rank's launch
  std::vector<int> launch_;   // per rank
  std::vector<int> running_;  // per rank: role agents not finished
  std::vector<std::int64_t> value_;
  std::vector<std::vector<std::int64_t>> base_;  // [launch][counter]
  std::vector<std::vector<int>> waiters_;        // per counter
  std::vector<std::shared_ptr<const Packets>> packets_;  // per launch
  std::vector<std::vector<int>> missing_;  // [launch][load]: stores still to come
  std::map<std::pair<int, int>, int> packet_waiters_;
  std::deque<int> ready_;
  Execution out_;
};

}  // namespace

Execution execute(const Timeline& timeline) { return Runner(timeline).run(); }

}  // namespace stretto
