#include "stretto/proof/happens_before.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "stretto/base/at.h"
#include "stretto/base/errors.h"
#include "stretto/proof/time_limit.h"

namespace stretto {
HappensBefore::HappensBefore(const Timeline& timeline, const Execution& execution,
                             const SyncPowers& powers)
    : timeline_(timeline),
      execution_(execution),
      graph_(timeline.launch(0)),
      edges_(timeline, powers),
      num_launches_(timeline.num_launches()),
      choices_(*graph_.choices) {
  STRETTO_CHECK(execution.finished, "happens-before needs an execution that finished");
  number_components();
  build_chains();
  find_multi_waits();
  index_packets();
  passes_on_all_ = edges_.hold() && std::ranges::none_of(graph_.counters, [](const Counter& c) {
                     return c.kind == CounterKind::kMeeting;
                   });
  for (const InstanceGraph* launch : timeline.launches) {
    passes_on_all_ &= launch->packet_loads.empty();
  }
  do {
    compute_clocks(causal_, Past::kOrder);
    ++num_rounds_;
  } while (refine());
  compute_stronger();
}

// One set of clocks for all kinds of accesses that the rows in use carry alike.
void HappensBefore::compute_stronger() {
  std::vector<std::vector<bool>> signatures;
  num_clocks_ = causal_.vectors.size();
  for (std::size_t p = 1; p < kNumPasts; ++p) {
    auto past = static_cast<Past>(p);
    std::vector<bool> signature = {edges_.carried_by_packets(past)};
    for (std::size_t r = 0; r < kNumSyncRows; ++r) {
      bool as_reads = past == Past::kRead && r == static_cast<std::size_t>(SyncRow::kPipePut);
      signature.push_back(!edges_.uses(static_cast<SyncRow>(r)) || as_reads ||
                          edges_.powers().rows[r].carries[p]);
    }
    bool as_order =
        edges_.hold() && std::find(signature.begin(), signature.end(), false) == signature.end();
    auto known = std::find(signatures.begin(), signatures.end(), signature);
    which_[p] = as_order ? -1 : static_cast<int>(known - signatures.begin());
    if (as_order || known != signatures.end()) continue;
    signatures.push_back(std::move(signature));
    compute_clocks(stronger_.emplace_back(), past);
    num_clocks_ += stronger_.back().vectors.size();
  }
}

// A role agent without notifies releases nothing before its launch ends, so its rank's stream
// component says all that others can know of it.
void HappensBefore::number_components() {
  int world = graph_.program->world_size;
  num_components_ = world;
  bool joins =
      std::all_of(edges_.power(SyncRow::kRolesDone).carries.begin(),
                  edges_.power(SyncRow::kRolesDone).carries.end(), [](bool c) { return c; }) &&
      edges_.holds(SyncRow::kRolesDone, SyncRow::kRolesDone, Scope::kGpu);
  component_of_.assign(graph_.agents.size(), -1);
  sync_base_.resize(graph_.agents.size());
  stream_base_.assign(at(world), {0});
  for (int a = 0; a < static_cast<int>(graph_.agents.size()); ++a) {
    bool releases = !joins;
    auto& base = sync_base_[at(a)];
    base.push_back(0);
    for (int e = 0; e < num_launches_; ++e) {
      const auto& syncs = timeline_.trace(a, e).syncs;
      base.push_back(base.back() + static_cast<std::int64_t>(syncs.size()) + 1);
      for (const Sync& s : syncs) {
        releases |= s.kind == SyncKind::kNotify || s.kind == SyncKind::kPacketStore;
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

std::pair<int, std::int64_t> HappensBefore::stamp(const ProgramPoint& x) const {
  const AgentTrace& trace = graph_.agents[at(x.agent)];
  if (trace.phase != Phase::kRoles) return {trace.rank, position(x.agent, x.launch, x.pos)};
  int component = component_of_[at(x.agent)];
  if (component >= 0) return {component, position(x.agent, x.launch, x.pos)};
  int on_end = graph_.first_agent[at(trace.rank)] + 1;
  return {trace.rank, position(on_end, x.launch, 0) - 1};
}

void HappensBefore::build_chains() {
  chains_ = std::make_shared<std::vector<std::vector<NotifyChain>>>(graph_.counters.size());
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
        auto& chains = (*chains_)[at(s.counter)];
        auto chain = std::find_if(chains.begin(), chains.end(),
                                  [&](const NotifyChain& c) { return c.component == component; });
        if (chain == chains.end()) chain = chains.insert(chain, NotifyChain{component, {}});
        std::int64_t before = chain->items.empty() ? 0 : chain->items.back().prefix;
        chain->items.push_back({num_items_++, a, e, pos, position(a, e, pos), before + s.amount});
      }
    }
  }
}

void HappensBefore::find_multi_waits() {
  multi_waits_ = std::make_shared<MultiWaits>();
  MultiWaits& waits = *multi_waits_;
  waits.on.resize(graph_.counters.size());
  waits.at.resize(graph_.agents.size());
  std::map<std::size_t, int> nothing;  // is needed of so many chains
  auto for_each = [&](const auto& fn) {
    for (int e = 0; e < num_launches_; ++e) {
      for (int a = 0; a < static_cast<int>(graph_.agents.size()); ++a) {
        const auto& syncs = timeline_.trace(a, e).syncs;
        for (int pos = 0; pos < static_cast<int>(syncs.size()); ++pos) {
          const Sync& s = syncs[at(pos)];
          if (s.kind != SyncKind::kWait || (*chains_)[at(s.counter)].size() < 2) continue;
          fn(MultiWait{.agent = a, .launch = e, .pos = pos, .counter = s.counter});
        }
      }
    }
  };
  std::size_t count = 0;
  for_each([&](const MultiWait&) { ++count; });
  waits.all.reserve(count);
  for_each([&](MultiWait wait) {
    auto number = static_cast<std::int32_t>(waits.all.size());
    auto point = static_cast<std::int32_t>(point_idx({wait.agent, wait.launch, wait.pos}));
    waits.at[at(wait.agent)].emplace_back(point, number);
    waits.on[at(wait.counter)].push_back(number);
    std::size_t num_chains = (*chains_)[at(wait.counter)].size();
    auto [it, is_new] = nothing.try_emplace(num_chains, static_cast<int>(waits.needed.size()));
    if (is_new) waits.needed.emplace_back(num_chains, 0);
    wait.alike = it->second;
    waits.all.push_back(wait);
  });
}

const HappensBefore::MultiWait& HappensBefore::multi_wait(const ProgramPoint& wait) const {
  const auto& of_agent = multi_waits_->at[at(wait.agent)];
  auto point = static_cast<std::int32_t>(point_idx(wait));
  auto it =
      std::ranges::lower_bound(of_agent, point, {}, [](const auto& known) { return known.first; });
  STRETTO_CHECK(it != of_agent.end() && it->first == point, "it is no wait for several");
  return multi_waits_->all[at(it->second)];
}

void HappensBefore::index_packets() {
  std::map<const InstanceGraph*, std::shared_ptr<LoadAt>> known;
  for (const InstanceGraph* launch : timeline_.launches) {
    auto [it, is_new] = known.try_emplace(launch);
    if (is_new) {
      it->second = std::make_shared<LoadAt>(launch->agents.size());
      const auto& loads = launch->packet_loads;
      for (std::size_t l = 0; l < loads.size(); ++l) {
        std::vector<std::int32_t>& at_pos = (*it->second)[at(loads[l].agent)];
        if (at_pos.empty()) at_pos.assign(launch->agents[at(loads[l].agent)].syncs.size(), -1);
        at_pos[at(loads[l].pos)] = static_cast<std::int32_t>(l);
      }
    }
    packet_load_at_.push_back(it->second);
  }
}

// --- clocks ---

std::int32_t HappensBefore::component(const Clocks& clocks, std::int32_t clock,
                                      int component) const {
  return clocks.vectors.component(clock, component);
}

std::size_t HappensBefore::point_idx(const ProgramPoint& p) const {
  return at(sync_base_[at(p.agent)][at(p.launch)] + p.pos);
}

std::int32_t HappensBefore::clock_at(const Clocks& clocks, const ProgramPoint& point) const {
  return clocks.at->point[at(point.agent)][point_idx(point)];
}

std::int32_t HappensBefore::merge(Clocks& clocks, std::int32_t clock, std::int32_t source,
                                  int component, std::int64_t value) {
  return clocks.vectors.merge(clock, source, component, static_cast<std::int32_t>(value));
}

void HappensBefore::compute_clocks(Clocks& clocks, Past past) {
  auto world = at(graph_.program->world_size);
  clocks.past = past;
  clocks.vectors.reset(num_components_);
  clocks.merged.clear();
  clocks.met.clear();
  clocks.told.clear();
  clocks.of_choice.clear();
  clocks.at->point.resize(graph_.agents.size());
  clocks.at->released.resize(graph_.agents.size());
  for (std::size_t a = 0; a < graph_.agents.size(); ++a) {
    clocks.at->point[a].resize(at(sync_base_[a].back()));
    if (past != Past::kOrder) clocks.at->released[a].resize(at(sync_base_[a].back()));
  }
  for (auto* table : {&clocks.at->start, &clocks.at->end}) {
    table->assign(world, std::vector<std::int32_t>(at(num_launches_), 0));
  }
  for (auto* stage : {&clocks.stream, &clocks.roles, &clocks.joined, &clocks.ended}) {
    stage->assign(world, 0);
  }
  std::vector<std::int64_t> over(graph_.agents.size(), 0);
  for (const Step& step : execution_.steps) {
    auto first = sync_base_[at(step.agent)][at(step.launch)];
    auto& points = clocks.at->point[at(step.agent)];
    std::int64_t& limit = over[at(step.agent)];
    if (step.begin == 0) {
      points[at(first)] = begin_agent(clocks, step);
      limit = position(step.agent, step.launch, 0);
    }
    std::int32_t clock = points[at(first + step.begin)];
    for (int pos = step.begin; pos < step.end; ++pos) {
      TimeLimit::look();
      const Sync& s = timeline_.trace(step.agent, step.launch).syncs[at(pos)];
      bool always = s.choice == TableChoices::kAlways;
      if (always) clock = acquire(clocks, clock, step, pos);
      points[at(first + pos + 1)] = clock;
      if (always && edges_.carries(step.agent, s, past)) {
        limit = position(step.agent, step.launch, pos) + 1;
      }
      if (past == Past::kOrder) continue;
      clocks.at->released[at(step.agent)][at(first + pos)] = static_cast<std::int32_t>(limit);
    }
    auto num_syncs = timeline_.trace(step.agent, step.launch).syncs.size();
    if (at(step.end) == num_syncs) end_agent(clocks, step, clock, limit);
  }
}

std::int32_t HappensBefore::begin_agent(Clocks& clocks, const Step& step) {
  const AgentTrace& trace = graph_.agents[at(step.agent)];
  auto r = at(trace.rank);
  if (trace.phase == Phase::kRoles) return clocks.roles[r];
  if (trace.phase == Phase::kStart) {
    std::int32_t clock = merge(clocks, clocks.stream[r], clocks.stream[r], trace.rank,
                               stream_base_[r][at(step.launch)] + 1);
    clocks.at->start[r][at(step.launch)] = clocks.roles[r] = clocks.joined[r] = clock;
    return clock;
  }
  return merge(clocks, clocks.joined[r], clocks.joined[r], trace.rank,
               position(step.agent, step.launch, 0));
}

// `limit`: what of the agent's own is over at its last event. The end of a launch ends everything.
void HappensBefore::end_agent(Clocks& clocks, const Step& step, std::int32_t clock,
                              std::int64_t limit) {
  const AgentTrace& trace = graph_.agents[at(step.agent)];
  auto r = at(trace.rank);
  auto past = static_cast<std::size_t>(clocks.past);
  auto num_syncs = static_cast<int>(timeline_.trace(step.agent, step.launch).syncs.size());
  if (trace.phase == Phase::kRoles) {
    int component = component_of_[at(step.agent)];
    std::int64_t over = sync_base_[at(step.agent)][at(step.launch + 1)];
    if (component < 0 && clock == clocks.roles[r]) return;
    bool holds = clocks.past == Past::kOrder ||
                 edges_.holds(SyncRow::kRolesDone, SyncRow::kRolesDone, Scope::kGpu);
    bool all = holds && edges_.power(SyncRow::kRolesDone).carries[past];
    bool as_one = all && clocks.ended[r] == clocks.joined[r];
    if (holds) {
      clocks.joined[r] = merge(clocks, clocks.joined[r], clock, component, all ? over : limit);
    }
    clocks.ended[r] =
        as_one ? clocks.joined[r] : merge(clocks, clocks.ended[r], clock, component, over);
    return;
  }
  std::int64_t over = position(step.agent, step.launch, num_syncs) + 1;
  if (trace.phase == Phase::kStart) {
    clocks.ended[r] = merge(clocks, clock, clock, trace.rank, over);
    bool holds = edges_.plain_start() || clocks.past == Past::kOrder ||
                 edges_.holds(SyncRow::kStartDone, SyncRow::kStartDone, Scope::kGpu);
    if (!holds) return;
    bool all = edges_.plain_start() || edges_.power(SyncRow::kStartDone).carries[past];
    clocks.roles[r] = all ? clocks.ended[r] : merge(clocks, clock, clock, trace.rank, limit);
    clocks.joined[r] = clocks.roles[r];
  } else {
    clock = merge(clocks, clock, clocks.ended[r], trace.rank, over);
    clocks.stream[r] = clocks.at->end[r][at(step.launch)] = clock;
  }
}

const NotifyChain::Item& HappensBefore::first_to_reach(const NotifyChain& chain,
                                                       std::int64_t threshold) {
  const auto& items = chain.items;
  if (at(threshold) <= items.size() && items[at(threshold) - 1].prefix == threshold) {
    return items[at(threshold) - 1];  // all amounts before are 1, as those of pipes are
  }
  return *std::lower_bound(items.begin(), items.end(), threshold,
                           [](const NotifyChain::Item& i, std::int64_t t) { return i.prefix < t; });
}

// What a wait learns goes by its clock, what it waits for, and the scope that it needs: waiters of
// a counter are of one rank, and differ in whether they are queues.
std::uint64_t HappensBefore::waiting_key(std::int32_t clock, int awaited, int waiter) const {
  return (static_cast<std::uint64_t>(clock) << 32) | (static_cast<std::uint64_t>(awaited) << 1) |
         (edges_.is_queue(waiter) ? 1 : 0);
}

std::int32_t HappensBefore::acquire(Clocks& clocks, std::int32_t clock, const Step& step,
                                    int pos) const {
  const Sync& s = timeline_.trace(step.agent, step.launch).syncs[at(pos)];
  if (s.kind == SyncKind::kPacketLoad && edges_.carried_by_packets(clocks.past)) {
    return acquire_packets(clocks, clock, step, pos);
  }
  if (s.kind != SyncKind::kWait) return clock;
  const auto& chains = (*chains_)[at(s.counter)];
  std::int64_t threshold = counter_base_[at(step.launch)][at(s.counter)] + s.amount;
  if (chains.empty() || threshold <= 0) return clock;
  if (chains.size() == 1) {
    return merge_item(clocks, clock, s.counter, first_to_reach(chains[0], threshold), step.agent);
  }
  const MultiWait& wait = multi_wait({step.agent, step.launch, pos});
  // Workers of a rank wait for the same notifies from the same state: they share the result.
  auto [it, is_new] = clocks.met.try_emplace(waiting_key(clock, wait.alike, step.agent), clock);
  if (is_new) {
    VectorClocks::Source all = told(clocks, wait);
    it->second = merge(clocks, clock, all.clock, all.component, all.value);
  }
  return it->second;
}

// What all notifies tell together that the wait cannot do without. They have happened before it in
// the execution, so their clocks are there.
VectorClocks::Source HappensBefore::told(Clocks& clocks, const MultiWait& wait) const {
  auto [it, is_new] = clocks.told.try_emplace(waiting_key(0, wait.alike, wait.agent),
                                              VectorClocks::Source{0, -1, 0});
  if (!is_new) return it->second;
  std::vector<VectorClocks::Source> sources;
  for (const NotifyChain::Item* item : last_needed(wait)) {
    auto source = source_of(clocks, wait.counter, *item, wait.agent);
    if (source) sources.push_back(*source);
  }
  if (sources.size() == 1) it->second = sources[0];
  if (sources.size() > 1) it->second.clock = clocks.vectors.merge(0, sources);
  return it->second;
}

// Of those notifies the ones after which none of the others comes: as slots go round workers free
// them one after the other. A clock that leaves one out tells no more than it should; where every
// edge passes on all that is known it tells as much.
std::vector<const NotifyChain::Item*> HappensBefore::last_needed(const MultiWait& wait) const {
  const auto& chains = (*chains_)[at(wait.counter)];
  auto comes_before = [&](const NotifyChain::Item& x, const NotifyChain::Item& y) {
    Mark from = mark({x.agent, x.launch, x.pos});
    return reaches(Past::kOrder, clock_at(causal_, {y.agent, y.launch, y.pos}), from);
  };
  std::vector<const NotifyChain::Item*> last;
  for (std::size_t c = 0; c < chains.size(); ++c) {
    int count = needed(wait)[c];
    if (count == 0) continue;
    const NotifyChain::Item& item = chains[c].items[at(count - 1)];
    bool idle = passes_on_all_ && std::ranges::any_of(last, [&](const NotifyChain::Item* other) {
                  return comes_before(item, *other);
                });
    if (idle) continue;
    if (passes_on_all_) {
      std::erase_if(last, [&](const auto* other) { return comes_before(*other, item); });
    }
    last.push_back(&item);
  }
  return last;
}

std::int32_t HappensBefore::acquire_packets(Clocks& clocks, std::int32_t clock, const Step& step,
                                            int pos) const {
  const std::vector<std::int32_t>& loads = (*packet_load_at_[at(step.launch)])[at(step.agent)];
  std::int32_t load = loads.empty() ? -1 : loads[at(pos)];
  if (load < 0) return clock;
  for (const auto& store : timeline_.launch(step.launch).packet_loads[at(load)].stores) {
    if (!store.always || !edges_.packet_arrives(store.agent, step.agent)) continue;
    ProgramPoint point{store.agent, step.launch, store.pos};
    std::int64_t over = position(point.agent, point.launch, point.pos) + 1;
    if (clocks.past != Past::kOrder) {
      over = clocks.at->released[at(point.agent)][point_idx(point)];
    }
    clock = clocks.vectors.later(
        clock, {clock_at(clocks, point), stamp(point).first, static_cast<std::int32_t>(over)});
  }
  return clock;
}

std::int32_t HappensBefore::merge_item(Clocks& clocks, std::int32_t clock, int counter,
                                       const NotifyChain::Item& item, int waiter) const {
  std::optional<VectorClocks::Source> source = source_of(clocks, counter, item, waiter);
  if (!source) return clock;
  if (graph_.counters[at(counter)].kind != CounterKind::kSignal) {
    return merge(clocks, clock, source->clock, source->component, source->value);
  }
  // Workers of a rank wait for the same notifies from the same state: they share the result.
  auto [it, is_new] = clocks.merged.try_emplace(waiting_key(clock, item.id, waiter), 0);
  if (is_new) it->second = merge(clocks, clock, source->clock, source->component, source->value);
  return it->second;
}

// What the waiter learns by the notify; nothing where the edge does not hold.
std::optional<VectorClocks::Source> HappensBefore::source_of(const Clocks& clocks, int counter,
                                                             const NotifyChain::Item& item,
                                                             int waiter) const {
  ProgramPoint point{item.agent, item.launch, item.pos};
  std::int64_t value = item.position + 1;
  if (clocks.past != Past::kOrder) {
    if (!edges_.holds(counter, item.agent, waiter)) return std::nullopt;
    value = clocks.at->released[at(item.agent)][point_idx(point)];
  }
  return VectorClocks::Source{clock_at(clocks, point), stamp(point).first,
                              static_cast<std::int32_t>(value)};
}

// --- necessity: necessary_notifies.h ---

bool HappensBefore::refine() {
  bool changed = false;
  const auto& on = multi_waits_->on;
  for (std::size_t c = 0; c < on.size(); ++c) {
    if (!on[c].empty()) changed |= refine(static_cast<int>(c), on[c]);
  }
  return changed;
}

// Waits for the same threshold with the same future need the same notifies: on a role's agents
// without notifies, those are all waits of a rank and launch.
bool HappensBefore::refine(int counter, const std::vector<int>& waits) {
  const std::vector<NotifyChain>& chains = (*chains_)[at(counter)];
  std::vector<std::vector<std::int32_t>> clocks;
  for (const NotifyChain& chain : chains) {
    auto& of_items = clocks.emplace_back();
    for (const NotifyChain::Item& i : chain.items) {
      of_items.push_back(clock_at(causal_, {i.agent, i.launch, i.pos}));
    }
  }
  NecessaryNotifies necessary(causal_.vectors, chains, std::move(clocks));
  std::vector<std::vector<int>>& all_needed = multi_waits_->needed;
  std::map<std::tuple<int, std::int64_t, std::int64_t>, int> known;
  std::map<std::vector<int>, int> alike;  // by what is needed
  bool changed = false;
  for (int w : waits) {
    MultiWait& wait = multi_waits_->all[at(w)];
    auto [component, position] = stamp({wait.agent, wait.launch, wait.pos});
    std::int64_t threshold = counter_base_[at(wait.launch)][at(counter)] +
                             timeline_.trace(wait.agent, wait.launch).syncs[at(wait.pos)].amount;
    auto [it, is_new] = known.try_emplace({component, position, threshold}, -1);
    if (is_new) {
      std::vector<int> items = necessary.of_wait(component, position, threshold, needed(wait));
      auto [same, is_first] = alike.try_emplace(items, static_cast<int>(all_needed.size()));
      if (is_first) all_needed.push_back(std::move(items));
      it->second = same->second;
    }
    changed |= all_needed[at(it->second)] != needed(wait);
    wait.alike = it->second;
  }
  return changed;
}

HappensBefore::Needs HappensBefore::needs_of(int launch) const {
  Needs needs;
  std::map<std::vector<Needs::Notify>, int> known;
  std::map<int, int> by_alike;
  auto notify = [](const NotifyChain::Item& i) { return Needs::Notify{i.agent, i.launch, i.pos}; };
  auto number = [&](std::vector<Needs::Notify> set) {
    if (set.empty()) return -1;
    auto [it, is_new] = known.try_emplace(std::move(set), static_cast<int>(needs.sets.size()));
    if (is_new) needs.sets.push_back(it->first);
    return it->second;
  };
  auto of_several = [&](const MultiWait& wait) {
    std::vector<Needs::Notify> set;
    const auto& chains = (*chains_)[at(wait.counter)];
    for (std::size_t c = 0; c < chains.size(); ++c) {
      int count = needed(wait)[c];
      if (count > 0) set.push_back(notify(chains[c].items[at(count - 1)]));
    }
    std::ranges::sort(set);
    return number(std::move(set));
  };
  for (int a = 0; a < static_cast<int>(graph_.agents.size()); ++a) {
    const auto& syncs = timeline_.trace(a, launch).syncs;
    for (int pos = 0; pos < static_cast<int>(syncs.size()); ++pos) {
      const Sync& s = syncs[at(pos)];
      bool told = s.kind == SyncKind::kWait &&
                  graph_.counters[at(s.counter)].kind == CounterKind::kSignal && s.amount > 0;
      if (!told || (*chains_)[at(s.counter)].empty()) continue;
      const auto& chains = (*chains_)[at(s.counter)];
      int set = -1;
      if (chains.size() == 1) {
        std::int64_t threshold = counter_base_[at(launch)][at(s.counter)] + s.amount;
        set = number({notify(first_to_reach(chains[0], threshold))});
      } else {
        const MultiWait& wait = multi_wait({a, launch, pos});
        auto [it, is_new] = by_alike.try_emplace(wait.alike, -1);
        if (is_new) it->second = of_several(wait);
        set = it->second;
      }
      if (set >= 0) needs.waits.push_back({a, pos, set});
    }
  }
  return needs;
}

// --- waits that happen for some tables only, and who may rely on them ---

// Positions of the agent's waits and fences that happen for some tables only, but whenever the
// choice does.
const std::vector<int>& HappensBefore::waits_of(const ProgramPoint& y, int choice) const {
  static const std::vector<int> kNone;
  if (choice == TableChoices::kAlways) return kNone;
  const AgentTrace& trace = timeline_.trace(y.agent, y.launch);
  auto [of_trace, is_first] = waits_of_choice_.try_emplace(&trace);
  ChoiceWaits& waits = of_trace->second;
  for (int pos = 0; is_first && pos < static_cast<int>(trace.syncs.size()); ++pos) {
    const Sync& s = trace.syncs[at(pos)];
    bool some = s.choice != TableChoices::kAlways && s.kind != SyncKind::kNotify;
    if (some) waits.all.push_back(pos);
  }
  auto [it, is_new] = waits.of_choice.try_emplace(choice);
  if (!is_new) return it->second;
  for (int pos : waits.all) {
    if (choices_.implies(choice, trace.syncs[at(pos)].choice)) it->second.push_back(pos);
  }
  return it->second;
}

// The clock of the agent at the point, with what those waits before it have acquired.
std::int32_t HappensBefore::clock_in_choice(Clocks& clocks, const ProgramPoint& y,
                                            int choice) const {
  std::int32_t clock = clock_at(clocks, y);
  const std::vector<int>& waits = waits_of(y, choice);
  auto end = std::lower_bound(waits.begin(), waits.end(), y.pos);
  if (end == waits.begin()) return clock;
  auto [it, is_new] = clocks.of_choice.try_emplace({y.agent, y.launch, y.pos, choice}, clock);
  if (!is_new) return it->second;
  for (auto w = waits.begin(); w != end; ++w) {
    clock = acquire(clocks, clock, {y.agent, y.launch, *w, *w + 1}, *w);
  }
  it->second = clock;
  return clock;
}

// Of a rank's waits for the same notifies under the same facts one.
const HappensBefore::SizedWaits& HappensBefore::sized_waits(int rank, int launch) const {
  auto [it, is_new] = sized_waits_.try_emplace({rank, launch});
  if (!is_new) return it->second;
  std::set<std::tuple<int, std::int64_t, int, bool>> seen;
  for (int a = graph_.first_agent[at(rank)]; a < graph_.first_agent[at(rank) + 1]; ++a) {
    const AgentTrace& trace = timeline_.trace(a, launch);
    for (int pos = 0; pos < static_cast<int>(trace.syncs.size()); ++pos) {
      const Sync& s = trace.syncs[at(pos)];
      bool sized = s.kind == SyncKind::kWait && s.choice != TableChoices::kAlways &&
                   graph_.counters[at(s.counter)].kind == CounterKind::kSignal;
      if (!sized || !seen.emplace(s.counter, s.amount, s.choice, edges_.is_queue(a)).second) {
        continue;
      }
      it->second[s.choice].push_back({a, launch, pos, pos + 1});
    }
  }
  return it->second;
}

// What the rank has been told by its waits that happen whenever the choice's facts are so.
std::int32_t HappensBefore::told_under(Clocks& clocks, int rank, int launch, int choice) const {
  auto [it, is_new] = clocks.under.try_emplace({rank, launch, choice}, 0);
  if (!is_new) return it->second;
  std::int32_t all = 0;
  for (const auto& [of, steps] : sized_waits(rank, launch)) {
    if (!choices_.implies(choice, of)) continue;
    auto [one, is_first] = clocks.of_sized.try_emplace({rank, launch, of}, 0);
    if (is_first) {
      std::int32_t clock = 0;
      for (const Step& s : steps) clock = acquire(clocks, clock, s, s.begin);
      one->second = clock;
    }
    all = merge(clocks, all, one->second, -1, 0);
  }
  return it->second = all;
}

std::int32_t HappensBefore::covered_clock(Clocks& clocks, const ProgramPoint& y, Path path,
                                          int choice) const {
  int pos = edges_.covered(timeline_.trace(y.agent, y.launch), path)[at(y.pos)];
  const auto& syncs = timeline_.trace(y.agent, y.launch).syncs;
  for (int w : waits_of(y, choice)) {
    if (w >= pos && w < y.pos && edges_.covers(syncs[at(w)], path)) pos = w + 1;
  }
  if (pos < 0) return clocks.at->start[at(graph_.agents[at(y.agent)].rank)][at(y.launch)];
  return clock_in_choice(clocks, {y.agent, y.launch, pos}, choice);
}

// --- queries ---

std::optional<ProgramPoint> HappensBefore::landed(const ProgramPoint& put) const {
  if (!edges_.lands() || put.landed.agent < 0) return std::nullopt;
  return ProgramPoint{put.landed.agent, put.launch, put.landed.pos};
}

bool HappensBefore::packet_arrives(int from, int to) const {
  return edges_.packet_arrives(from, to);
}

bool HappensBefore::before(const ProgramPoint& x, const ProgramPoint& y, Past past, Path path,
                           int choice) const {
  if (past == Past::kBulkLoad) {
    std::optional<ProgramPoint> got = landed(x);
    if (!got.has_value()) return false;
    if (got->agent == y.agent && got->launch == y.launch) return got->pos <= y.pos;
    return before(*got, y, Past::kRead, path, choice);
  }
  return reaches(past, knowledge(y, past, path, choice), mark(x));
}

HappensBefore::Mark HappensBefore::mark(const ProgramPoint& x) const {
  auto [component, position] = stamp(x);
  return {component, position};
}

std::optional<std::pair<Past, HappensBefore::Mark>> HappensBefore::over_at(const ProgramPoint& x,
                                                                           Past past) const {
  if (past != Past::kBulkLoad) return std::pair(past, mark(x));
  std::optional<ProgramPoint> got = landed(x);
  if (!got) return std::nullopt;
  return std::pair(Past::kRead, mark(*got));
}

std::int32_t HappensBefore::knowledge(const ProgramPoint& y, Past past, Path path,
                                      int choice) const {
  Clocks& c = clocks(past);
  return past == Past::kOrder ? clock_in_choice(c, y, choice) : covered_clock(c, y, path, choice);
}

bool HappensBefore::reaches(Past past, std::int32_t knowledge, const Mark& mark) const {
  return component(clocks(past), knowledge, mark.component) > mark.position;
}

Past HappensBefore::carried_alike(Past past) const {
  auto p = static_cast<std::size_t>(past), first = std::min<std::size_t>(p, 1);
  while (which_[first] != which_[p]) ++first;
  return static_cast<Past>(first);
}

bool HappensBefore::start_before(int rank, int launch, const ProgramPoint& y, Path path,
                                 int choice) const {
  Clocks& c = clocks(Past::kWrite);
  return component(c, covered_clock(c, y, path, choice), rank) > stream_base_[at(rank)][at(launch)];
}

std::int32_t HappensBefore::knowledge_at_end(int rank, int launch, Past past) const {
  return clocks(past).at->end[at(rank)][at(launch)];
}

bool HappensBefore::start_reaches(int rank, int launch, Past past, std::int32_t knowledge) const {
  return component(clocks(past), knowledge, rank) > stream_base_[at(rank)][at(launch)];
}

bool HappensBefore::before_end(const ProgramPoint& x, int rank, int launch, Past past,
                               int when) const {
  if (past == Past::kBulkLoad) {
    std::optional<ProgramPoint> got = landed(x);
    return got.has_value() && before_end(*got, rank, launch, Past::kRead, when);
  }
  Clocks& c = clocks(past);
  Mark x_over = mark(x);
  if (reaches(past, c.at->end[at(rank)][at(launch)], x_over)) return true;
  if (when == TableChoices::kAlways || launch < x.launch) return false;
  return reaches(past, told_under(c, rank, x.launch, when), x_over);
}

bool HappensBefore::before_by_end(const ProgramPoint& x, const ProgramPoint& y, Past past,
                                  Path path, int when, int choice) const {
  if (when == TableChoices::kAlways || y.launch <= x.launch) return false;
  // A load by TMA is over where its slot is got, and that is passed on as reads are.
  Past passed = past == Past::kBulkLoad ? Past::kRead : past;
  std::int32_t known = knowledge(y, passed, path, choice);
  for (int rank = 0; rank < graph_.program->world_size; ++rank) {
    bool knows = start_reaches(rank, x.launch + 1, passed, known);
    if (knows && before_end(x, rank, x.launch, past, when)) return true;
  }
  return false;
}

bool HappensBefore::fenced(const ProgramPoint& x, const ProgramPoint& y, Past past, Path path,
                           int choice) const {
  const RowPower& row = edges_.power(SyncRow::kFence);
  bool enough = past < Past::kBulkLoad && row.carries[static_cast<std::size_t>(past)] &&
                row.covers[static_cast<std::size_t>(path)] &&
                !edges_.is_clustered(graph_.agents[at(x.agent)].role);
  if (!enough || x.agent != y.agent || x.launch != y.launch) return false;
  const auto& syncs = timeline_.trace(x.agent, x.launch).syncs;
  return std::any_of(syncs.begin() + x.pos, syncs.begin() + y.pos, [&](const Sync& s) {
    return s.kind == SyncKind::kFence && choices_.implies(choice, s.choice);
  });
}

std::vector<SyncRow> HappensBefore::missing_rows(const Holds& holds) const {
  std::vector<SyncRow> out;
  for (std::size_t r = 0; r < kNumSyncRows; ++r) {
    SyncPowers powers = edges_.powers();
    powers.rows[r] = kEverything;
    if (holds(HappensBefore(timeline_, execution_, powers))) out.push_back(static_cast<SyncRow>(r));
  }
  return out;
}

std::vector<int> HappensBefore::entries_waited_for(const ProgramPoint& y) const {
  std::map<std::pair<int, std::vector<std::int64_t>>, int> first;
  const AgentTrace& trace = timeline_.trace(y.agent, y.launch);
  for (int pos = 0; pos < y.pos; ++pos) {
    const Sync& s = trace.syncs[at(pos)];
    if (s.choice == TableChoices::kAlways) continue;
    for (int f : choices_.facts_in(s.choice)) {
      const TableFact& fact = choices_.fact_at(f);
      if (fact.kind == FactKind::kValue) first.try_emplace({fact.table, fact.entry}, f);
    }
  }
  std::vector<int> out;
  for (const auto& [entry, f] : first) out.push_back(f);
  return out;
}

}  // namespace stretto
