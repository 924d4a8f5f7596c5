#include "stretto/proof/launch_patterns.h"

#include <algorithm>
#include <atomic>
#include <optional>
#include <utility>

#include "stretto/base/at.h"
#include "stretto/proof/check.h"
#include "stretto/proof/happens_before.h"
#include "stretto/proof/launch_promises.h"
#include "stretto/proof/time_limit.h"
#include "stretto/proof/timeline.h"

namespace stretto {
namespace {

using Needs = HappensBefore::Needs;

// Numbers below a count, each taken by one thread, in order; up to the first that settles it.
class Turns {
 public:
  explicit Turns(std::size_t count) : end_(count) {}
  std::optional<std::size_t> next() {
    std::size_t i = next_++;
    return i < end_ ? std::optional(i) : std::nullopt;
  }
  void end_after(std::size_t i) {
    for (std::size_t seen = end_; i + 1 < seen && !end_.compare_exchange_weak(seen, i + 1);) {
    }
  }
  std::size_t end() const { return end_; }

 private:
  std::atomic<std::size_t> next_{0}, end_;
};

class Orders {
 public:
  Orders(const std::vector<SizedGraph>& cases, const ProofOptions& options, std::size_t num_threads)
      : program_(*cases[0].graph->program),
        options_(options),
        num_threads_(num_threads),
        kinds_(kinds_of(cases)),
        alone_(kinds_.size()),
        by_promises_(options.promises && kinds_.size() > 1 &&
                     program_.world_size <= kMostRanksInSet && notified_by_one(kinds_)),
        promises_(kinds_.size()) {
    std::vector<bool> tensors = buffers_met(cases);
    TimeLimit::side_by_side(kinds_.size(), num_threads, [&](std::size_t k) {
      if (kinds_[k].cases.size() > 1 || kinds_[k].cases[0].graph->has_spans)
        kinds_[k].merged = merge(kinds_[k].cases, tensors);
    });
  }

  SizesVerdict prove(std::size_t affordable) {
    // Clocks take as much time and memory as there are launches.
    if (kinds_.size() == 1 || by_promises_) {
      SizesVerdict few = prove_each_kind(/*few_launches=*/true);
      if (all_hold(few) && (kinds_.size() == 1 || kinds_keep_promises())) return few;
    }
    SizesVerdict out = prove_each_kind(/*few_launches=*/false);
    if (!all_hold(out)) return out;
    std::optional<int> in_doubt;
    if (by_promises_) in_doubt = slots_in_doubt(program_, promises_);
    if (by_promises_ && !in_doubt && all_end_alone()) return out;
    MixedOrders mixed = mixed_orders(program_, kinds_, affordable, in_doubt.value_or(-1));
    out.left_out = std::move(mixed.left_out);
    std::vector<OrderVerdict> more = prove(mixed.orders);
    std::move(more.begin(), more.end(), std::back_inserter(out.orders));
    return out;
  }

 private:
  SizesVerdict prove_each_kind(bool few_launches) {
    std::vector<LaunchOrder> steady;
    for (std::size_t k = 0; k < kinds_.size(); ++k) {
      auto kind = static_cast<int>(k);
      steady.push_back(few_launches ? short_order(program_, kinds_[k], kind)
                                    : steady_order(program_, kind));
    }
    return {.orders = prove(steady)};
  }

  static bool all_hold(const SizesVerdict& verdict) {
    const OrderVerdict& last = verdict.orders.back();
    return last.findings.empty() && last.error == nullptr;
  }

  bool kinds_keep_promises() const {
    return !slots_in_doubt(program_, promises_) && all_end_alone();
  }

  // Then they end in any sequence: each finds what those before it have added and no more.
  bool all_end_alone() const {
    return std::all_of(kinds_.begin(), kinds_.end(), [](const LaunchKind& kind) {
      return execute(Timeline{{kind.cases[0].graph}}).finished;
    });
  }

  std::vector<OrderVerdict> prove(const std::vector<LaunchOrder>& orders) {
    std::vector<OrderVerdict> verdicts(orders.size());
    if (orders.empty()) return verdicts;
    std::size_t threads_each = std::max<std::size_t>(1, num_threads_ / orders.size());
    std::size_t num_checkers = std::min(orders.size(), num_threads_);
    Turns turns(orders.size());
    TimeLimit::side_by_side(num_checkers, num_checkers, [&](std::size_t) {
      AccessChecker checker = new_checker();
      while (std::optional<std::size_t> i = turns.next()) {
        OrderVerdict& verdict = verdicts[*i];
        try {
          prove(orders[*i], checker, threads_each, verdict);
        } catch (...) {
          verdict.error = std::current_exception();
        }
        if (!verdict.findings.empty() || verdict.error != nullptr) turns.end_after(*i);
      }
    });
    verdicts.resize(turns.end());
    return verdicts;
  }

  AccessChecker new_checker() const {
    return AccessChecker(options_.max_findings, *options_.table, options_.few_pairs);
  }

  void prove(const LaunchOrder& order, AccessChecker& checker, std::size_t num_threads,
             OrderVerdict& verdict) {
    const auto first = at(order.kinds[0]);
    bool steady = std::equal(order.kinds.begin() + 1, order.kinds.end(), order.kinds.begin());
    Timeline timeline, touched;
    for (int k : order.kinds) {
      timeline.launches.push_back(kinds_[at(k)].cases[0].graph);
      touched.launches.push_back(&kinds_[at(k)].touched());
    }
    Execution execution = execute(timeline);
    if (!execution.finished) {
      std::vector<ChosenCase> where;
      for (auto [rank, choice] : execution.stuck_choices) {
        where.push_back({.rank = rank, .choice = choice});
      }
      Finding stuck{.kind = FindingKind::kProgress, .text = execution.stuck, .cases = where};
      return add({stuck}, order, verdict);
    }
    HappensBefore before(timeline, execution, powers_of(*options_.table));
    checker.use(before);
    Needs needs = before.needs_of(0);
    if (steady || needs != alone_[first]) {
      add(first_finding(timeline, before, kinds_[first].cases, checker, num_threads), order,
          verdict);
    }
    if (verdict.findings.empty()) add(checker.check_reuse(touched, order.reach), order, verdict);
    verdict.stats.cases = steady ? static_cast<int>(kinds_[first].cases.size()) : 1;
    for (const SizedGraph& one : kinds_[first].cases) {
      verdict.stats.events = std::max(verdict.stats.events, one.graph->num_events());
    }
    verdict.stats.clocks = before.num_clocks();
    verdict.stats.components = before.num_components();
    verdict.stats.launches = timeline.num_launches();
    verdict.stats.rounds = before.num_rounds();
    if (!steady) return;
    alone_[first] = std::move(needs);
    if (by_promises_) promises_[first] = promises_of(kinds_[first].touched(), before);
  }

  // What is found of launch 0 with the first of these sizes of which anything is. Sizes that
  // synchronise alike share their order, but not what is noted while it is asked.
  std::vector<Finding> first_finding(const Timeline& timeline, const HappensBefore& before,
                                     const std::vector<SizedGraph>& cases, AccessChecker& checker,
                                     std::size_t num_threads) const {
    std::vector<std::vector<Finding>> found(cases.size());
    Turns turns(cases.size());
    auto look = [&](AccessChecker& by) {
      while (std::optional<std::size_t> i = turns.next()) {
        Timeline with = timeline;
        with.launches[0] = cases[*i].graph;
        found[*i] = by.check_launch(with);
        for (Finding& f : found[*i]) f.in_turn = {.first = static_cast<int>(*i)};
        if (!found[*i].empty()) turns.end_after(*i);
      }
    };
    std::vector<HappensBefore> others(std::min(cases.size(), num_threads) - 1, before);
    TimeLimit::side_by_side(others.size() + 1, num_threads, [&](std::size_t c) {
      if (c == others.size()) return look(checker);
      AccessChecker another = new_checker();
      another.use(others[c]);
      look(another);
    });
    return std::move(found[turns.end() - 1]);
  }

  void add(const std::vector<Finding>& found, const LaunchOrder& order, OrderVerdict& verdict) {
    for (const Finding& f : found) {
      Finding& added = verdict.findings.emplace_back(
          finding_with(f.kind, f.text, describe_order(kinds_, order, f.in_turn), f.cases));
      const CasesInTurn& sizes = f.in_turn;
      auto extents = [&](int launch, int of_case) {
        return kinds_[at(order.kinds[at(launch)])].cases[at(of_case)].graph->extents;
      };
      added.extents = {extents(0, sizes.first)};
      if (sizes.apart > 0) added.extents.push_back(extents(sizes.apart, sizes.later));
    }
  }

  const Program& program_;
  const ProofOptions& options_;
  std::size_t num_threads_;
  std::vector<LaunchKind> kinds_;
  std::vector<Needs> alone_;  // per kind: of a launch among others of its kind
  bool by_promises_;          // no sequence of kinds needs laying out where these suffice
  std::vector<LaunchPromises> promises_;  // per kind
};

}  // namespace

Finding finding_with(FindingKind kind, const std::string& text, const std::string& where,
                     const std::vector<ChosenCase>& cases) {
  return {kind, where.empty() ? text : text + "\n    with " + where, cases};
}

SizesVerdict prove_sizes(const std::vector<SizedGraph>& cases, const ProofOptions& options,
                         std::size_t affordable, std::size_t num_threads) {
  return Orders(cases, options, num_threads).prove(affordable);
}

}  // namespace stretto
