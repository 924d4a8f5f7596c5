// Waits that happen for some tables only, and who may rely on them (happens_before.h).
#include <algorithm>

#include "stretto/proof/happens_before.h"

namespace stretto {
namespace {

std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

}  // namespace

// Positions of the agent's waits and fences that happen for some tables only, but whenever the
// choice does.
const std::vector<int>& HappensBefore::waits_of(const Place& y, int choice) const {
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

// The clock of the agent at the place, with what those waits before it have acquired.
std::int32_t HappensBefore::clock_in_choice(Clocks& clocks, const Place& y, int choice) const {
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

std::vector<int> HappensBefore::entries_waited_for(const Place& y) const {
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
