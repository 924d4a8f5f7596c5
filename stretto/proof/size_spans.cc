#include "stretto/proof/size_spans.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "stretto/proof/size_masks.h"

namespace stretto {
namespace {

// What an access touches at all sizes of the region; absent where an end of it is not known.
std::optional<Box> span_of(const InstanceGraph& graph, const Access& a, const SizeRegion& region) {
  Box span = graph.boxes[static_cast<std::size_t>(a.box)];
  for (std::size_t d = 0; d < graph.shapes[static_cast<std::size_t>(a.tensor)].size(); ++d) {
    auto dim = static_cast<int>(d);
    const SizeForm* lo = region.end_at(a.tensor, a.rank, dim, span.lo[d]);
    const SizeForm* hi = region.end_at(a.tensor, a.rank, dim, span.hi[d]);
    if (lo == nullptr || hi == nullptr) return {};
    span.lo[d] = region.least(*lo);
    span.hi[d] = region.most(*hi);
  }
  return span;
}

}  // namespace

void note_spans(InstanceGraph& graph, SizeRegion& region) {
  std::map<Box, int> numbers;
  for (AgentTrace& agent : graph.agents) {
    for (Access& a : agent.accesses) {
      std::optional<Box> span = span_of(graph, a, region);
      if (!span) {
        region.keep_sample_alone();
        span = span_of(graph, a, region);
      }
      if (!span || *span == graph.boxes[static_cast<std::size_t>(a.box)]) continue;
      auto [it, is_new] = numbers.try_emplace(*span, static_cast<int>(graph.boxes.size()));
      if (is_new) graph.boxes.push_back(*span);
      a.span = it->second;
      graph.has_spans = true;
    }
  }
}

namespace {

// Of accesses that were there at some size before the region got as small as it is now.
void leave_out_nothing(AgentTrace& agent, const std::vector<bool>& nothing) {
  std::vector<Access> kept;
  std::vector<int> moved;
  for (const Access& a : agent.accesses) {
    bool gone = nothing[static_cast<std::size_t>(a.box)];
    moved.push_back(gone ? -1 : static_cast<int>(kept.size()));
    if (!gone) kept.push_back(a);
  }
  if (kept.size() == agent.accesses.size()) return;
  agent.accesses = std::move(kept);
  for (Sync& s : agent.syncs) {
    if (s.access >= 0) s.access = moved[static_cast<std::size_t>(s.access)];
  }
}

// Facts of sizes under which signals are waited for, where no others are needed.
std::set<int> facts_of_waits(const InstanceGraph& graph) {
  std::set<int> choices, out;
  for (const AgentTrace& agent : graph.agents) {
    for (const Sync& s : agent.syncs) {
      bool waits = s.kind == SyncKind::kWait && s.choice != TableChoices::kAlways &&
                   graph.counters[static_cast<std::size_t>(s.counter)].kind == CounterKind::kSignal;
      if (waits) choices.insert(s.choice);
    }
  }
  for (int choice : choices) {
    const std::vector<int>& facts = graph.choices->facts_in(choice);
    bool of_sizes = std::ranges::all_of(facts, [&](int f) { return graph.masks->has_fact(f); });
    if (of_sizes) out.insert(facts.begin(), facts.end());
  }
  return out;
}

// Of what ranks touch on each other: whoever has to know when it is over may go by that, by waits
// under these facts. Other facts tell nobody anything.
void note_facts(InstanceGraph& graph) {
  if (!graph.choices->any()) return;
  std::set<int> waited = facts_of_waits(graph);
  if (waited.empty()) return;
  std::map<int, std::vector<int>> known;  // by box
  for (AgentTrace& agent : graph.agents) {
    for (Access& a : agent.accesses) {
      if (a.rank == agent.rank) continue;
      auto [it, is_new] = known.try_emplace(a.box);
      if (is_new) it->second = graph.masks->facts_with(a.box, waited);
      std::vector<int> facts = it->second;
      if (a.choice != TableChoices::kAlways) {
        // Not what its own rank's tables say: others have other tables.
        for (int fact : graph.choices->facts_in(a.choice)) {
          if (waited.count(fact) != 0) facts.push_back(fact);
        }
      }
      if (!facts.empty()) a.when = graph.choices->choice(std::move(facts));
    }
  }
}

}  // namespace

void settle_masks(InstanceGraph& graph, const SizeRegion& region) {
  graph.masks->settle(region);
  std::vector<bool> nothing;
  for (int m = 0; m < static_cast<int>(graph.masks->size()); ++m) {
    graph.boxes.push_back(graph.masks->hull(m));
    graph.mask_of_box.push_back(m);
    nothing.push_back(graph.masks->is_nothing(m));
  }
  for (AgentTrace& agent : graph.agents) leave_out_nothing(agent, nothing);
  note_facts(graph);
}

}  // namespace stretto
