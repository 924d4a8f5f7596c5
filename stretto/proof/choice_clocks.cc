// Waits that happen for some tables only, and who may rely on them (happens_before.h).
#include <algorithm>
#include <set>
#include <tuple>

#include "stretto/base/at.h"
#include "stretto/proof/happens_before.h"

namespace stretto {
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
      if (!sized || !seen.emplace(s.counter, s.amount, s.choice, queue(a)).second) continue;
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

bool HappensBefore::before_by_end(const Place& x, const Place& y, Past past, Path path, int when,
                                  int choice) const {
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
