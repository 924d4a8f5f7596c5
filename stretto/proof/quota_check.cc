#include "stretto/proof/quota_check.h"

#include <fmt/format.h>

#include "stretto/base/at.h"
#include "stretto/proof/launch_patterns.h"

namespace stretto {
namespace {

// A counter of which a launch adds other than `quota`.
std::optional<Finding> other_quota(const InstanceGraph& graph, const std::string& where,
                                   const std::vector<std::int64_t>& quota) {
  for (std::size_t c = 0; c < graph.counters.size(); ++c) {
    if (graph.counters[c].kind != CounterKind::kSignal || graph.quota[c] == quota[c]) continue;
    const SourceLoc& loc = graph.program->signals[at(graph.counters[c].symbol)].loc;
    return finding_with(
        FindingKind::kQuota,
        fmt::format("{}:{}: {} gets {} per launch here and {} elsewhere: every launch must add the "
                    "same",
                    loc.file, loc.line, describe_counter(graph, static_cast<int>(c)),
                    graph.quota[c], quota[c]),
        where, {});
  }
  return {};
}

// A wait for more than a launch adds.
std::optional<Finding> high_threshold(const InstanceGraph& graph, const std::string& where) {
  for (std::size_t a = 0; a < graph.agents.size(); ++a) {
    for (const Sync& s : graph.agents[a].syncs) {
      if (s.kind != SyncKind::kWait || s.amount <= graph.quota[at(s.counter)]) continue;
      return finding_with(
          FindingKind::kQuota,
          fmt::format("{}: {} waits for {} to reach {}, but a launch adds only {}",
                      describe_loc(s.op), describe_agent(graph, static_cast<int>(a), s.tile),
                      describe_counter(graph, s.counter), s.amount, graph.quota[at(s.counter)]),
          where, {{.rank = graph.agents[a].rank, .choice = s.choice}});
    }
  }
  return {};
}

}  // namespace

std::optional<Finding> wrong_counter(const InstanceGraph& graph, const std::string& where,
                                     const std::vector<std::int64_t>& quota) {
  std::optional<Finding> found = other_quota(graph, where, quota);
  if (!found) found = high_threshold(graph, where);
  if (found) found->extents = {graph.extents};
  return found;
}

}  // namespace stretto
