#include "stretto/proof/launch_patterns.h"

#include <algorithm>
#include <atomic>
#include <thread>
#include <utility>

#include "stretto/proof/happens_before.h"
#include "stretto/proof/timeline.h"

namespace stretto {
namespace {

// Patterns with one key: they share a happens-before.
using Group = std::vector<const LaunchPattern*>;

std::vector<Group> groups_of(const std::vector<LaunchPattern>& patterns) {
  std::vector<Group> groups;
  for (const LaunchPattern& p : patterns) {
    auto group = std::find_if(groups.begin(), groups.end(),
                              [&](const Group& g) { return g[0]->key == p.key; });
    if (group == groups.end()) group = groups.insert(groups.end(), Group{});
    group->push_back(&p);
  }
  return groups;
}

// Two periods to look at, one more so that notifies of the future show where they are cut off.
// What is found of the first period holds for all (happens_before.h).
Timeline repeat(const LaunchPattern& pattern) {
  Timeline timeline;
  for (int e = 0; e < 3 * pattern.period + 1; ++e) {
    timeline.launches.push_back(
        pattern.graphs[static_cast<std::size_t>(e) % pattern.graphs.size()]);
  }
  return timeline;
}

void prove_alike(const Group& group, const ProofOptions& options, AccessChecker& checker,
                 PatternVerdict& verdict) {
  const LaunchPattern& pattern = *group[0];
  Timeline timeline = repeat(pattern);
  Execution execution = execute(timeline);
  if (!execution.finished) {
    std::vector<ChosenCase> where;
    for (auto [rank, choice] : execution.stuck_choices) {
      where.push_back({.rank = rank, .choice = choice});
    }
    verdict.findings.push_back(
        finding_with(FindingKind::kProgress, execution.stuck, pattern.where, where));
    return;
  }
  HappensBefore order(timeline, execution, powers_of(*options.table));
  checker.use(order);
  for (const LaunchPattern* p : group) {
    if (!verdict.findings.empty()) return;
    ++verdict.stats.cases;
    verdict.stats.events = std::max(verdict.stats.events, p->graphs[0]->num_events());
    for (const Finding& f : checker.check(repeat(*p), pattern.period)) {
      verdict.findings.push_back(finding_with(f.kind, f.text, p->where, f.cases));
    }
  }
  verdict.stats.clocks = order.num_clocks();
  verdict.stats.components = order.num_components();
  verdict.stats.launches = timeline.num_launches();
  verdict.stats.rounds = order.num_rounds();
}

}  // namespace

Finding finding_with(FindingKind kind, const std::string& text, const std::string& where,
                     const std::vector<ChosenCase>& cases) {
  return {kind, where.empty() ? text : text + "\n    with " + where, cases};
}

void side_by_side(std::size_t count, std::size_t num_threads,
                  const std::function<void(std::size_t)>& work) {
  std::atomic<std::size_t> next{0};
  auto take_turns = [&] {
    for (std::size_t i = next++; i < count; i = next++) work(i);
  };
  std::vector<std::jthread> helpers;
  for (std::size_t i = 1; i < std::min(count, num_threads); ++i) helpers.emplace_back(take_turns);
  take_turns();
}

std::vector<PatternVerdict> prove_patterns(const std::vector<LaunchPattern>& patterns,
                                           const ProofOptions& options, std::size_t num_threads) {
  std::vector<Group> groups = groups_of(patterns);
  std::vector<PatternVerdict> verdicts(groups.size());
  std::atomic<std::size_t> next{0}, last{groups.size()};  // groups from `last` on do not matter
  auto work = [&] {
    AccessChecker checker(options.max_findings, *options.table, options.few_pairs);
    for (std::size_t i = next++; i < last; i = next++) {
      try {
        prove_alike(groups[i], options, checker, verdicts[i]);
      } catch (...) {
        verdicts[i].error = std::current_exception();
      }
      if (verdicts[i].findings.empty() && verdicts[i].error == nullptr) continue;
      for (std::size_t seen = last; i + 1 < seen && !last.compare_exchange_weak(seen, i + 1);) {
      }
    }
  };
  {
    std::vector<std::jthread> helpers;
    for (std::size_t i = 1; i < std::min(groups.size(), num_threads); ++i) {
      helpers.emplace_back(work);
    }
    work();
  }
  verdicts.resize(last);
  return verdicts;
}

}  // namespace stretto
