#include "stretto/proof/happens_before.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <tuple>

#include "stretto/base/errors.h"

namespace stretto {
namespace {

constexpr std::int64_t kEndless = std::numeric_limits<std::int64_t>::max() / 4;

std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

std::uint64_t place_key(int agent, int launch, int pos) {
  return (static_cast<std::uint64_t>(agent) << 40) | (static_cast<std::uint64_t>(launch) << 28) |
         static_cast<std::uint64_t>(pos);
}

bool is_pipe(CounterKind kind) {
  return kind == CounterKind::kPipeFull || kind == CounterKind::kPipeEmpty;
}

}  // namespace

HappensBefore::HappensBefore(const Timeline& timeline, const Execution& execution)
    : timeline_(timeline), graph_(timeline.launch(0)), num_launches_(timeline.num_launches()) {
  STRETTO_CHECK(execution.finished, "happens-before needs an execution that finished");
  number_components();
  build_chains();
  find_multi_waits();
  index_packets();
  do {
    compute_clocks(execution, causal_, Strength::kCausal);
    ++num_rounds_;
  } while (refine());
  if (weak_edges_) compute_clocks(execution, visible_, Strength::kVisible);
  num_clocks_ = (causal_.arena.size() + visible_.arena.size()) / at(num_components_);
}

// A role agent without notifies releases nothing before its launch ends, so its rank's stream
// component says all that others can know of it.
void HappensBefore::number_components() {
  int world = graph_.program->world_size;
  num_components_ = world;
  component_of_.assign(graph_.agents.size(), -1);
  sync_base_.resize(graph_.agents.size());
  stream_base_.assign(at(world), {0});
  for (int a = 0; a < static_cast<int>(graph_.agents.size()); ++a) {
    bool releases = false;
    auto& base = sync_base_[at(a)];
    base.push_back(0);
    for (int e = 0; e < num_launches_; ++e) {
      const auto& syncs = timeline_.trace(a, e).syncs;
      base.push_back(base.back() + static_cast<std::int64_t>(syncs.size()) + 1);
      for (const Sync& s : syncs) {
        releases |= s.kind == SyncKind::kNotify || s.kind == SyncKind::kPacketStore;
        weak_edges_ |=
            s.kind == SyncKind::kPacketStore ||
            (s.kind == SyncKind::kNotify && is_pipe(graph_.counters[at(s.counter)].kind));
      }
    }
    if (releases && graph_.agents[at(a)].phase == Phase::kRoles) {
      component_of_[at(a)] = num_components_++;
    }
  }
  for (int r = 0; r < world; ++r) {
    int first = graph_.first_agent[at(r)];
    for (int e = 0; e < num_launches_; ++e) {
      auto events =
          timeline_.trace(first, e).syncs.size() + timeline_.trace(first + 1, e).syncs.size();
      stream_base_[at(r)].push_back(stream_base_[at(r)].back() + static_cast<std::int64_t>(events) +
                                    4);
    }
  }
}

// A rank's stream: start, on_start's events, the roles' begin, the roles' end, on_end's events,
// end.
std::int64_t HappensBefore::position(int agent, int launch, int pos) const {
  const AgentTrace& trace = graph_.agents[at(agent)];
  if (trace.phase == Phase::kRoles) return sync_base_[at(agent)][at(launch)] + pos;
  std::int64_t base = stream_base_[at(trace.rank)][at(launch)] + 1;
  if (trace.phase == Phase::kStart) return base + pos;
  int first = graph_.first_agent[at(trace.rank)];
  return base + static_cast<std::int64_t>(timeline_.trace(first, launch).syncs.size()) + 2 + pos;
}

std::pair<int, std::int64_t> HappensBefore::stamp(const Place& x) const {
  const AgentTrace& trace = graph_.agents[at(x.agent)];
  if (trace.phase != Phase::kRoles) return {trace.rank, position(x.agent, x.launch, x.pos)};
  int component = component_of_[at(x.agent)];
  if (component >= 0) return {component, position(x.agent, x.launch, x.pos)};
  int on_end = graph_.first_agent[at(trace.rank)] + 1;
  return {trace.rank, position(on_end, x.launch, 0) - 1};
}

void HappensBefore::build_chains() {
  chains_.resize(graph_.counters.size());
  counter_base_.assign(at(num_launches_ + 1), std::vector<std::int64_t>(graph_.counters.size(), 0));
  for (int e = 0; e < num_launches_; ++e) {
    for (std::size_t c = 0; c < graph_.counters.size(); ++c) {
      counter_base_[at(e + 1)][c] = counter_base_[at(e)][c] + timeline_.launch(e).quota[c];
    }
    for (int a = 0; a < static_cast<int>(graph_.agents.size()); ++a) {
      const AgentTrace& trace = timeline_.trace(a, e);
      int component = trace.phase == Phase::kRoles ? component_of_[at(a)] : trace.rank;
      for (int pos = 0; pos < static_cast<int>(trace.syncs.size()); ++pos) {
        const Sync& s = trace.syncs[at(pos)];
        if (s.kind != SyncKind::kNotify) continue;
        auto& chains = chains_[at(s.counter)];
        auto chain = std::find_if(chains.begin(), chains.end(),
                                  [&](const Chain& c) { return c.component == component; });
        if (chain == chains.end()) chain = chains.insert(chain, Chain{component, {}});
        std::int64_t before = chain->items.empty() ? 0 : chain->items.back().prefix;
        chain->items.push_back({num_items_++, a, e, pos, position(a, e, pos), before + s.amount});
      }
    }
  }
}

void HappensBefore::find_multi_waits() {
  waits_on_.resize(graph_.counters.size());
  for (int e = 0; e < num_launches_; ++e) {
    for (int a = 0; a < static_cast<int>(graph_.agents.size()); ++a) {
      const auto& syncs = timeline_.trace(a, e).syncs;
      for (int pos = 0; pos < static_cast<int>(syncs.size()); ++pos) {
        const Sync& s = syncs[at(pos)];
        if (s.kind != SyncKind::kWait || chains_[at(s.counter)].size() < 2) continue;
        multi_wait_at_[place_key(a, e, pos)] = static_cast<int>(multi_waits_.size());
        waits_on_[at(s.counter)].push_back(static_cast<int>(multi_waits_.size()));
        multi_waits_.push_back({.agent = a,
                                .launch = e,
                                .pos = pos,
                                .counter = s.counter,
                                .threshold = counter_base_[at(e)][at(s.counter)] + s.amount,
                                .needed = std::vector<int>(chains_[at(s.counter)].size(), 0)});
      }
    }
  }
}

void HappensBefore::index_packets() {
  packet_load_at_.resize(at(num_launches_));
  for (int e = 0; e < num_launches_; ++e) {
    const auto& loads = timeline_.launch(e).packet_loads;
    for (std::size_t l = 0; l < loads.size(); ++l) {
      packet_load_at_[at(e)][place_key(loads[l].agent, 0, loads[l].pos)] = static_cast<int>(l);
    }
  }
}

// --- clocks ---

std::int32_t HappensBefore::component(const Clocks& clocks, std::int32_t clock,
                                      int component) const {
  return clocks.arena[at(clock) * at(num_components_) + at(component)];
}

std::int32_t HappensBefore::clock_at(const Clocks& clocks, const Place& place) const {
  auto idx = sync_base_[at(place.agent)][at(place.launch)] + place.pos;
  return clocks.at_place[at(place.agent)][at(idx)];
}

// The least upper bound of `clock` and `source` with `component` at least `value`; `clock` itself
// where that adds nothing.
std::int32_t HappensBefore::merge(Clocks& clocks, std::int32_t clock, std::int32_t source,
                                  int component, std::int64_t value) {
  auto n = at(num_components_);
  scratch_.resize(n);
  const std::int32_t* a = &clocks.arena[at(clock) * n];
  const std::int32_t* b = &clocks.arena[at(source) * n];
  bool is_new = false;
  for (std::size_t i = 0; i < n; ++i) {
    scratch_[i] = std::max(a[i], b[i]);
    is_new |= scratch_[i] != a[i];
  }
  auto v = static_cast<std::int32_t>(value);
  if (component >= 0 && scratch_[at(component)] < v) {
    scratch_[at(component)] = v;
    is_new = true;
  }
  if (!is_new) return clock;
  clocks.arena.insert(clocks.arena.end(), scratch_.begin(), scratch_.end());
  return static_cast<std::int32_t>(clocks.arena.size() / n) - 1;
}

void HappensBefore::compute_clocks(const Execution& execution, Clocks& clocks, Strength strength) {
  auto world = at(graph_.program->world_size);
  clocks.arena.assign(at(num_components_), 0);
  clocks.merged.clear();
  clocks.at_place.resize(graph_.agents.size());
  for (std::size_t a = 0; a < graph_.agents.size(); ++a) {
    clocks.at_place[a].resize(at(sync_base_[a].back()));
  }
  clocks.at_end.assign(world, std::vector<std::int32_t>(at(num_launches_), 0));
  for (auto* stage : {&clocks.stream, &clocks.roles, &clocks.joined}) stage->assign(world, 0);
  for (const Step& step : execution.steps) {
    auto first = sync_base_[at(step.agent)][at(step.launch)];
    auto& places = clocks.at_place[at(step.agent)];
    if (step.begin == 0) places[at(first)] = begin_agent(clocks, step);
    std::int32_t clock = places[at(first + step.begin)];
    for (int pos = step.begin; pos < step.end; ++pos) {
      clock = acquire(clocks, clock, step, pos, strength);
      places[at(first + pos + 1)] = clock;
    }
    auto num_syncs = timeline_.trace(step.agent, step.launch).syncs.size();
    if (at(step.end) == num_syncs) end_agent(clocks, step, clock);
  }
}

std::int32_t HappensBefore::begin_agent(Clocks& clocks, const Step& step) {
  const AgentTrace& trace = graph_.agents[at(step.agent)];
  auto r = at(trace.rank);
  if (trace.phase == Phase::kRoles) return clocks.roles[r];
  if (trace.phase == Phase::kStart) {
    return merge(clocks, clocks.stream[r], clocks.stream[r], trace.rank,
                 stream_base_[r][at(step.launch)] + 1);
  }
  return merge(clocks, clocks.joined[r], clocks.joined[r], trace.rank,
               position(step.agent, step.launch, 0));
}

void HappensBefore::end_agent(Clocks& clocks, const Step& step, std::int32_t clock) {
  const AgentTrace& trace = graph_.agents[at(step.agent)];
  auto r = at(trace.rank);
  auto num_syncs = static_cast<int>(timeline_.trace(step.agent, step.launch).syncs.size());
  if (trace.phase == Phase::kRoles) {
    int component = component_of_[at(step.agent)];
    std::int64_t over = sync_base_[at(step.agent)][at(step.launch + 1)];
    if (component < 0 && clock == clocks.roles[r]) return;
    clocks.joined[r] = merge(clocks, clocks.joined[r], clock, component, over);
    return;
  }
  std::int64_t over = position(step.agent, step.launch, num_syncs) + 1;
  clock = merge(clocks, clock, clock, trace.rank, over);
  if (trace.phase == Phase::kStart) {
    clocks.roles[r] = clocks.joined[r] = clock;
  } else {
    clocks.stream[r] = clocks.at_end[r][at(step.launch)] = clock;
  }
}

std::int32_t HappensBefore::acquire(Clocks& clocks, std::int32_t clock, const Step& step, int pos,
                                    Strength strength) {
  const Sync& s = timeline_.trace(step.agent, step.launch).syncs[at(pos)];
  if (s.kind == SyncKind::kPacketLoad && strength == Strength::kCausal) {
    auto it = packet_load_at_[at(step.launch)].find(place_key(step.agent, 0, pos));
    if (it == packet_load_at_[at(step.launch)].end()) return clock;
    for (const auto& store : timeline_.launch(step.launch).packet_loads[at(it->second)].stores) {
      auto [component, position] = stamp({store.agent, step.launch, store.pos});
      clock = merge(clocks, clock, clock_at(clocks, {store.agent, step.launch, store.pos}),
                    component, position + 1);
    }
  }
  if (s.kind != SyncKind::kWait) return clock;
  const auto& chains = chains_[at(s.counter)];
  std::int64_t threshold = counter_base_[at(step.launch)][at(s.counter)] + s.amount;
  if (chains.empty() || threshold <= 0) return clock;
  if (chains.size() == 1) {
    const auto& items = chains[0].items;
    auto item = std::lower_bound(items.begin(), items.end(), threshold,
                                 [](const ChainItem& i, std::int64_t t) { return i.prefix < t; });
    return merge_item(clocks, clock, s.counter, *item, strength);
  }
  const MultiWait& wait =
      multi_waits_[at(multi_wait_at_.at(place_key(step.agent, step.launch, pos)))];
  for (std::size_t c = 0; c < chains.size(); ++c) {
    if (wait.needed[c] == 0) continue;
    clock = merge_item(clocks, clock, s.counter, chains[c].items[at(wait.needed[c] - 1)], strength);
  }
  return clock;
}

std::int32_t HappensBefore::merge_item(Clocks& clocks, std::int32_t clock, int counter,
                                       const ChainItem& item, Strength strength) {
  std::int32_t source = clock_at(clocks, {item.agent, item.launch, item.pos});
  int component = stamp({item.agent, item.launch, item.pos}).first;
  std::int64_t value = item.position + 1;
  if (strength == Strength::kVisible && is_pipe(graph_.counters[at(counter)].kind)) {
    value = release_limit(item.agent, item.launch, item.pos);
  }
  // Workers of a rank wait for the same notifies from the same state: they share the result.
  std::uint64_t key =
      (static_cast<std::uint64_t>(clock) << 32) | static_cast<std::uint32_t>(item.id);
  auto [it, is_new] = clocks.merged.try_emplace(key, 0);
  if (is_new) it->second = merge(clocks, clock, source, component, value);
  return it->second;
}

// One past the last event before `pos` after which the agent's own global writes are complete.
std::int64_t HappensBefore::release_limit(int agent, int launch, int pos) const {
  const auto& syncs = timeline_.trace(agent, launch).syncs;
  for (int p = pos - 1; p >= 0; --p) {
    const Sync& s = syncs[at(p)];
    bool completes = s.kind == SyncKind::kFence ||
                     (s.kind == SyncKind::kNotify && !is_pipe(graph_.counters[at(s.counter)].kind));
    if (completes) return position(agent, launch, p) + 1;
  }
  return 0;
}

// --- necessity ---

class HappensBefore::AfterTable {
 public:
  AfterTable(const HappensBefore& order, const std::vector<Chain>& chains)
      : order_(order), chains_(chains) {
    std::size_t num_items = 0;
    for (const Chain& chain : chains) {
      first_row_.push_back(num_items);
      num_items += chain.items.size();
    }
    after_.assign(num_items * chains.size(), -1);
  }

  const std::vector<Chain>& chains() const { return chains_; }

  int after(std::size_t chain, int item, std::size_t other) {
    int& found = after_[(first_row_[chain] + at(item)) * chains_.size() + other];
    if (found < 0) {
      found = order_.first_after(chains_[other], chains_[chain].component,
                                 chains_[chain].items[at(item)].position);
    }
    return found;
  }

  // What the counter can reach when item `item` of chain `chain` has not happened, counting no
  // further than `enough`. cut[h] items of chain h can come without the wait; -1: all, endlessly.
  std::int64_t available_without(const std::vector<int>& cut, std::size_t chain, int item,
                                 std::int64_t enough) {
    std::int64_t sum = item == 0 ? 0 : chains_[chain].items[at(item - 1)].prefix;
    for (std::size_t h = 0; h < chains_.size() && sum < enough; ++h) {
      if (h == chain) continue;
      int end = after(chain, item, h);
      if (cut[h] < 0 && end == static_cast<int>(chains_[h].items.size())) return kEndless;
      if (cut[h] >= 0) end = std::min(end, cut[h]);
      if (end > 0) sum += chains_[h].items[at(end - 1)].prefix;
    }
    return sum;
  }

 private:
  const HappensBefore& order_;
  const std::vector<Chain>& chains_;
  std::vector<std::size_t> first_row_;
  std::vector<int> after_;
};

bool HappensBefore::refine() {
  bool changed = false;
  for (std::size_t c = 0; c < waits_on_.size(); ++c) {
    if (!waits_on_[c].empty()) changed |= refine(static_cast<int>(c), waits_on_[c]);
  }
  return changed;
}

// Waits for the same threshold with the same future need the same notifies: on a role's agents
// without notifies, those are all waits of a rank and launch.
bool HappensBefore::refine(int counter, const std::vector<int>& waits) {
  AfterTable table(*this, chains_[at(counter)]);
  std::map<std::tuple<int, std::int64_t, std::int64_t>, std::vector<int>> known;
  bool changed = false;
  for (int w : waits) {
    MultiWait& wait = multi_waits_[at(w)];
    auto [component, position] = stamp({wait.agent, wait.launch, wait.pos});
    auto [it, is_new] = known.try_emplace({component, position, wait.threshold});
    if (is_new) it->second = necessary(table, wait);
    changed |= it->second != wait.needed;
    wait.needed = it->second;
  }
  return changed;
}

// The first of the chain's items that comes after `position` of `component`; their number where
// none does.
int HappensBefore::first_after(const Chain& chain, int component, std::int64_t position) const {
  int lo = 0, hi = static_cast<int>(chain.items.size());
  while (lo < hi) {
    int mid = lo + (hi - lo) / 2;
    const ChainItem& item = chain.items[at(mid)];
    bool after;
    if (chain.component == component) {
      after = item.position > position;
    } else {
      std::int32_t clock = clock_at(causal_, {item.agent, item.launch, item.pos});
      after = this->component(causal_, clock, component) > position;
    }
    if (after) {
      hi = mid;
    } else {
      lo = mid + 1;
    }
  }
  return lo;
}

// Per chain, how many of its first items the wait cannot do without.
std::vector<int> HappensBefore::necessary(AfterTable& table, const MultiWait& wait) const {
  const auto& chains = table.chains();
  auto [component, position] = stamp({wait.agent, wait.launch, wait.pos});
  std::vector<int> cut, needed = wait.needed;
  for (const Chain& chain : chains) {
    int end = first_after(chain, component, position);
    cut.push_back(end == static_cast<int>(chain.items.size()) ? -1 : end);
  }
  for (std::size_t g = 0; g < chains.size(); ++g) {
    int lo = needed[g];
    int hi = cut[g] < 0 ? static_cast<int>(chains[g].items.size()) : cut[g];
    while (lo < hi) {  // items [0, lo) are necessary, those from hi on are not
      int mid = lo + (hi - lo) / 2;
      if (table.available_without(cut, g, mid, wait.threshold) < wait.threshold) {
        lo = mid + 1;
      } else {
        hi = mid;
      }
    }
    needed[g] = lo;
  }
  return needed;
}

// --- queries ---

bool HappensBefore::before(const Place& x, const Place& y, Strength strength) const {
  const Clocks& c = clocks(strength);
  auto [component, position] = stamp(x);
  return this->component(c, clock_at(c, y), component) > position;
}

bool HappensBefore::start_before(int rank, int launch, const Place& y, Strength strength) const {
  const Clocks& c = clocks(strength);
  return component(c, clock_at(c, y), rank) > stream_base_[at(rank)][at(launch)];
}

bool HappensBefore::before_end(const Place& x, int rank, int launch, Strength strength) const {
  const Clocks& c = clocks(strength);
  auto [component, position] = stamp(x);
  return this->component(c, c.at_end[at(rank)][at(launch)], component) > position;
}

std::string HappensBefore::shift_difference(int period) const {
  for (const MultiWait& wait : multi_waits_) {
    if (wait.launch > period) continue;
    auto it = multi_wait_at_.find(place_key(wait.agent, wait.launch + period, wait.pos));
    if (it == multi_wait_at_.end()) continue;
    const MultiWait& twin = multi_waits_[at(it->second)];
    const auto& chains = chains_[at(wait.counter)];
    for (std::size_t c = 0; c < chains.size(); ++c) {
      if (wait.needed[c] == 0) continue;
      const ChainItem& item = chains[c].items[at(wait.needed[c] - 1)];
      std::int64_t shifted = position(item.agent, item.launch + period, item.pos);
      bool holds =
          twin.needed[c] > 0 && chains[c].items[at(twin.needed[c] - 1)].position >= shifted;
      if (holds) continue;
      const Sync& s = timeline_.trace(wait.agent, wait.launch).syncs[at(wait.pos)];
      return fmt::format("{}: {}", describe_loc(s.op),
                         describe_agent(timeline_.launch(wait.launch), wait.agent, s.tile));
    }
  }
  return {};
}

}  // namespace stretto
