#include "stretto/proof/pipe_slice.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "stretto/base/at.h"

namespace stretto {
namespace {

bool is_pipe(const Counter& c) {
  return c.kind == CounterKind::kPipeFull || c.kind == CounterKind::kPipeEmpty ||
         c.kind == CounterKind::kPipeTurn || c.kind == CounterKind::kMeeting;
}

constexpr char kTold = 1, kLearnt = 2;

// A counter of a pipe: its only notifier, its only waiter, and where they are.
struct Passing {
  int notifier = -1, waiter = -1;
  bool sliced = true;
  bool by_size = false;              // moved at some sizes only
  std::vector<int> notifies;         // positions
  std::vector<int> waits;            // positions, ascending
  std::vector<std::int64_t> asks;    // by wait: which notify, from 1 on, ascending
  std::vector<char> stays;           // by wait: kTold, kLearnt or both, 0: none
  std::vector<std::int64_t> counts;  // by notify: how many of those up to it stay
};

class Slicer {
 public:
  explicit Slicer(const InstanceGraph& graph) : graph_(graph) {}

  InstanceGraph run() {
    find_passings();
    choose();
    return write();
  }

 private:
  // What an agent tells (`pos`: its event) or has learnt, by way of agent `from`, -1: from outside.
  struct Event {
    int agent, pos, from;
    bool told;
  };

  void find_passings() {
    passings_.resize(graph_.counters.size());
    for (int a = 0; a < static_cast<int>(graph_.agents.size()); ++a) {
      const auto& syncs = graph_.agents[at(a)].syncs;
      for (int pos = 0; pos < static_cast<int>(syncs.size()); ++pos) {
        if (on_pipe(syncs[at(pos)])) note(a, pos, syncs[at(pos)]);
      }
    }
    in_.resize(graph_.agents.size());
    out_.resize(graph_.agents.size());
    for (std::size_t c = 0; c < passings_.size(); ++c) {
      Passing& p = passings_[c];
      for (std::int64_t ask : p.asks)
        p.sliced &= ask <= static_cast<std::int64_t>(p.notifies.size());
      if (!p.sliced || p.waits.empty()) continue;
      p.stays.resize(p.waits.size());
      // Turns say nothing that the slots do not.
      if (graph_.counters[c].kind == CounterKind::kPipeTurn) continue;
      in_[at(p.waiter)].push_back(static_cast<int>(c));
      out_[at(p.notifier)].push_back(static_cast<int>(c));
    }
  }

  bool on_pipe(const Sync& s) const {
    bool counts = s.kind == SyncKind::kNotify || s.kind == SyncKind::kWait;
    return counts && is_pipe(graph_.counters[at(s.counter)]);
  }
  bool is_sliced(const Sync& s) const { return on_pipe(s) && passings_[at(s.counter)].sliced; }

  bool is_left_out(const Sync& s) const { return on_pipe(s) && passings_[at(s.counter)].by_size; }

  void note(int agent, int pos, const Sync& s) {
    Passing& p = passings_[at(s.counter)];
    int& owner = s.kind == SyncKind::kNotify ? p.notifier : p.waiter;
    bool always = s.choice == TableChoices::kAlways;
    p.sliced &= (owner < 0 || owner == agent) && always;
    // Nobody may rely on a meeting, either.
    p.by_size |= !always && graph_.masks != nullptr;
    p.by_size |= graph_.counters[at(s.counter)].kind == CounterKind::kMeeting;
    owner = agent;
    if (s.kind == SyncKind::kNotify) {
      p.sliced &= s.amount == 1;
      p.notifies.push_back(pos);
      return;
    }
    p.sliced &= s.amount > (p.asks.empty() ? 0 : p.asks.back());
    p.waits.push_back(pos);
    p.asks.push_back(s.amount);
  }

  void choose() {
    for (int a = 0; a < static_cast<int>(graph_.agents.size()); ++a) {
      if (in_[at(a)].empty() && out_[at(a)].empty()) continue;
      const auto& syncs = graph_.agents[at(a)].syncs;
      for (int pos = 0; pos < static_cast<int>(syncs.size()); ++pos) {
        const Sync& s = syncs[at(pos)];
        if (is_sliced(s) || is_left_out(s) || s.kind == SyncKind::kFence) continue;
        bool told = s.kind == SyncKind::kNotify || s.kind == SyncKind::kPacketStore;
        events_.push_back({a, pos, -1, told});
        follow();
      }
    }
  }

  void follow() {
    while (!events_.empty()) {
      Event e = events_.back();
      events_.pop_back();
      e.told ? keep_last_before(e) : keep_first_after(e);
    }
  }

  // Of what each other agent passes to this one. Of several pipes between the two, the one that the
  // other moved on last tells all.
  void keep_last_before(const Event& e) {
    std::map<int, Edge> last;  // by notifier
    for (int c : in_[at(e.agent)]) {
      const Passing& p = passings_[at(c)];
      auto after = std::lower_bound(p.waits.begin(), p.waits.end(), e.pos);
      if (p.notifier == e.from || after == p.waits.begin()) continue;
      Edge edge{c, at(after - p.waits.begin()) - 1};
      auto [known, is_new] = last.try_emplace(p.notifier, edge);
      if (!is_new && notify_of(known->second) < notify_of(edge)) known->second = edge;
    }
    for (auto [notifier, edge] : last) {
      if (keep(edge, kTold)) events_.push_back({notifier, notify_of(edge), e.agent, true});
    }
  }

  // Of what this agent passes to each other one. Of several pipes between the two, the one that the
  // other looks at first tells all.
  void keep_first_after(const Event& e) {
    std::map<int, Edge> first;  // by waiter
    for (int c : out_[at(e.agent)]) {
      const Passing& p = passings_[at(c)];
      if (p.waiter == e.from) continue;
      auto notify = std::upper_bound(p.notifies.begin(), p.notifies.end(), e.pos);
      auto ask = std::lower_bound(p.asks.begin(), p.asks.end(), notify - p.notifies.begin() + 1);
      if (ask == p.asks.end()) continue;
      Edge edge{c, at(ask - p.asks.begin())};
      auto [known, is_new] = first.try_emplace(p.waiter, edge);
      if (!is_new && wait_of(edge) < wait_of(known->second)) known->second = edge;
    }
    for (auto [waiter, edge] : first) {
      if (keep(edge, kLearnt)) events_.push_back({waiter, wait_of(edge), e.agent, false});
    }
  }

  // A wait of a pipe's counter, and the notify that it waits for.
  struct Edge {
    int counter;
    std::size_t wait;
  };
  int wait_of(const Edge& e) const { return passings_[at(e.counter)].waits[e.wait]; }
  int notify_of(const Edge& e) const {
    const Passing& p = passings_[at(e.counter)];
    return p.notifies[at(p.asks[e.wait] - 1)];
  }

  // Whether it was not to stay yet for that reason.
  bool keep(const Edge& e, char why) {
    char& stays = passings_[at(e.counter)].stays[e.wait];
    bool is_new = (stays & why) == 0;
    stays = static_cast<char>(stays | why);
    return is_new;
  }

  InstanceGraph write() {
    InstanceGraph out;
    out.program = graph_.program;
    out.extents = graph_.extents;
    out.shapes = graph_.shapes;
    out.first_agent = graph_.first_agent;
    out.counters = graph_.counters;
    out.quota = graph_.quota;
    out.packet_loads = graph_.packet_loads;
    out.choices = graph_.choices;
    out.has_spans = graph_.has_spans;
    out.unsure_entry = graph_.unsure_entry;
    for (std::size_t c = 0; c < passings_.size(); ++c) count(passings_[c], out.quota[c]);
    box_ids_.assign(graph_.boxes.size(), -1);
    for (const AgentTrace& agent : graph_.agents) out.agents.push_back(write(agent));
    out.boxes = std::move(boxes_);
    out.masks = graph_.masks;
    out.mask_of_box = std::move(mask_of_box_);
    out.whole_tensors = graph_.whole_tensors;
    move(out);
    return out;
  }

  // How many notifies stay, up to each.
  void count(Passing& p, std::int64_t& quota) const {
    if (p.by_size) quota = 0;
    if (!p.sliced || p.notifier < 0) return;
    p.counts.assign(p.notifies.size(), 0);
    for (std::size_t w = 0; w < p.waits.size(); ++w) {
      if (p.stays[w] != 0) p.counts[at(p.asks[w] - 1)] = 1;
    }
    quota = 0;
    for (std::int64_t& n : p.counts) n = quota += n;
  }

  AgentTrace write(const AgentTrace& agent) {
    AgentTrace out;
    out.rank = agent.rank;
    out.phase = agent.phase;
    out.role = agent.role;
    out.worker = agent.worker;
    out.agent = agent.agent;
    for (const Access& a : agent.accesses) {
      const Tensor& tensor = graph_.program->tensors[at(a.tensor)];
      if (!nobody_writes(tensor)) out.accesses.push_back(with_box(a));
    }
    std::vector<int>& moved = moved_.emplace_back();
    std::map<int, std::size_t> next_notify, next_wait;  // by counter
    for (const Sync& s : agent.syncs) {
      moved.push_back(static_cast<int>(out.syncs.size()));
      if (is_left_out(s)) continue;
      if (!is_sliced(s)) {
        out.syncs.push_back(s);
        continue;
      }
      const Passing& p = passings_[at(s.counter)];
      Sync kept = s;
      if (s.kind == SyncKind::kNotify) {
        std::size_t i = next_notify[s.counter]++;
        if (p.counts[i] == (i == 0 ? 0 : p.counts[i - 1])) continue;
      } else {
        std::size_t i = next_wait[s.counter]++;
        if (p.stays[i] == 0) continue;
        kept.amount = p.counts[at(p.asks[i] - 1)];
      }
      out.syncs.push_back(kept);
    }
    moved.push_back(static_cast<int>(out.syncs.size()));
    out.syncs.shrink_to_fit();
    out.accesses.shrink_to_fit();
    return out;
  }

  Access with_box(Access access) {
    access.box = kept_box(access.box);
    if (access.span >= 0) access.span = kept_box(access.span);
    return access;
  }
  int kept_box(int number) {
    int& box = box_ids_[at(number)];
    if (box < 0) {
      box = static_cast<int>(boxes_.size());
      boxes_.push_back(graph_.boxes[at(number)]);
      if (graph_.masks != nullptr) mask_of_box_.push_back(graph_.mask_of_box[at(number)]);
    }
    return box;
  }

  // Positions to where they are now.
  void move(InstanceGraph& out) const {
    auto moved = [&](int agent, int pos) { return moved_[at(agent)][at(pos)]; };
    for (std::size_t a = 0; a < out.agents.size(); ++a) {
      for (Access& access : out.agents[a].accesses) {
        access.pos = moved_[a][at(access.pos)];
        Landing& landed = access.landed;
        if (landed.agent >= 0) landed.pos = moved(landed.agent, landed.pos);
      }
    }
    for (PacketLoad& load : out.packet_loads) {
      load.pos = moved(load.agent, load.pos);
      std::erase_if(load.stores, [](const PacketLoad::Store& store) { return !store.always; });
      for (PacketLoad::Store& store : load.stores) store.pos = moved(store.agent, store.pos);
    }
  }

  const InstanceGraph& graph_;
  std::vector<Passing> passings_;           // by counter
  std::vector<std::vector<int>> in_, out_;  // by agent: counters that it waits for, and notifies
  std::vector<Event> events_;
  std::vector<std::vector<int>> moved_;  // [agent][position]: events before it that stay
  std::vector<int> box_ids_;             // by box of the graph: in the slice, -1: not there
  std::vector<Box> boxes_;
  std::vector<int> mask_of_box_;
};

}  // namespace

void link_landings(InstanceGraph& graph) {
  std::vector<std::vector<Landing>> gets(graph.counters.size());  // by which of its waits, from 1
  auto each_of_full_slots = [&](SyncKind kind, auto&& use) {
    for (int a = 0; a < static_cast<int>(graph.agents.size()); ++a) {
      const auto& syncs = graph.agents[at(a)].syncs;
      for (int pos = 0; pos < static_cast<int>(syncs.size()); ++pos) {
        const Sync& s = syncs[at(pos)];
        bool full = s.kind == kind && graph.counters[at(s.counter)].kind == CounterKind::kPipeFull;
        if (full) use(a, pos, s);
      }
    }
  };
  each_of_full_slots(SyncKind::kWait, [&](int a, int pos, const Sync& s) {
    auto& of = gets[at(s.counter)];
    if (of.size() <= at(s.amount)) of.resize(at(s.amount) + 1);
    of[at(s.amount)] = {a, pos + 1};
  });
  std::vector<std::vector<Landing>> landings(graph.agents.size());  // by position of the put
  std::vector<std::size_t> puts(graph.counters.size());
  each_of_full_slots(SyncKind::kNotify, [&](int a, int pos, const Sync& s) {
    const auto& of = gets[at(s.counter)];
    std::size_t put = ++puts[at(s.counter)];
    landings[at(a)].resize(graph.agents[at(a)].syncs.size());
    if (put < of.size()) landings[at(a)][at(pos)] = of[put];
  });
  for (std::size_t a = 0; a < graph.agents.size(); ++a) {
    for (Access& access : graph.agents[a].accesses) {
      bool before_a_put = at(access.pos) < landings[a].size();
      bool known = access.landed.agent >= 0;  // open_loops.h
      if (before_a_put && !known && access.kind == AccessKind::kRead) {
        access.landed = landings[a][at(access.pos)];
      }
    }
  }
}

InstanceGraph without_idle_slots(const InstanceGraph& graph) { return Slicer(graph).run(); }

}  // namespace stretto
