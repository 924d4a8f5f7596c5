#include "stretto/proof/prove.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "stretto/base/errors.h"
#include "stretto/ir/quota.h"
#include "stretto/proof/expand.h"
#include "stretto/proof/launch_patterns.h"
#include "stretto/proof/pipe_slice.h"
#include "stretto/proof/reach.h"
#include "stretto/proof/sample.h"
#include "stretto/proof/sync_kinds.h"

namespace stretto {
namespace {

std::size_t at(int i) { return static_cast<std::size_t>(i); }

// Of run-time sizes, however large the program is.
constexpr std::size_t kMinCases = 16;
// Programs of fewer events a launch are proved sooner than threads start; more threads would take
// more memory than some machines have, a gigabyte each where a program is large.
constexpr std::size_t kFewEvents = 20'000, kMostThreads = 16;
// Of graphs with so many events only so many are held at a time.
constexpr std::size_t kManyEvents = 100'000, kHeld = 4;
// Of all launches that are laid out beside each other, some gigabytes.
constexpr std::int64_t kMostEvents = std::int64_t{1} << 27;

// One combination of extents and tables.
struct Case {
  InstanceGraph graph;
  std::string where;
};
using Cases = std::vector<Case>;

std::string describe_extents(const Program& program, const std::vector<std::int64_t>& extents) {
  std::string text;
  std::size_t next = 0;
  for (const Var& v : program.vars) {
    if (v.kind != VarKind::kExtent && v.kind != VarKind::kScalar) continue;
    text += fmt::format("{}{} = {}", text.empty() ? "" : ", ", v.name, extents[next++]);
  }
  return text;
}

class Prover {
 public:
  Prover(const Program& program, const ProofOptions& options)
      : program_(program), options_(options) {}

  ProofResult run() {
    auto begin = std::chrono::steady_clock::now();
    try {
      check_resources();
      check_pipes();
      if (ok()) prove_samples();
      if (ok() && result_.stats.every_table) check_reach();
      if (ok()) check_counting();
    } catch (const Rejected& e) {
      add(FindingKind::kIllFormed, e.what(), context_);
    } catch (const UserError& e) {
      add(FindingKind::kIllFormed, e.what(), context_);
    }
    std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    result_.stats.seconds = took.count();
    finish();
    return std::move(result_);
  }

 private:
  void prove_samples() {
    std::vector<std::vector<std::int64_t>> bounds = {extent_bounds(program_)};
    bool open_tables = true;  // the graph stands for every table
    result_.stats.every_table = options_.tables == nullptr;
    Cases cases;  // the largest, until it is known how many are affordable
    try {
      cases = expand_all(bounds, -1);
    } catch (const DependsOnTable& reason) {
      open_tables = false;
      result_.stats.sampled_because = "a table decides " + reason.what;
      cases = expand_all(bounds, 0);
    }
    auto samples =
        options_.bounds_only ? bounds : sampled(bounds[0].size(), cases[0].graph.num_events());
    if (!open_tables) return prove_witnesses(samples);
    try {
      bool few_at_a_time = samples.size() > 1 && cases[0].graph.num_events() >= kManyEvents;
      if (few_at_a_time && holds_few_at_a_time(std::move(cases), samples)) return;
      if (!options_.bounds_only) cases = expand_all(samples, -1);
      prove_cases(cases, !few_at_a_time);
      if (!ok() && has_choices(cases)) prove_in_doubt(samples);
    } catch (const DependsOnTable& reason) {
      result_.stats.sampled_because = "a table decides " + reason.what;
      prove_witnesses(samples);
    }
  }

  // Run-time sizes, as many as launches of so many events allow.
  std::vector<std::vector<std::int64_t>> sampled(std::size_t num_extents, std::size_t events) {
    std::size_t affordable =
        std::max(kMinCases, options_.max_events / std::max<std::size_t>(1, events));
    std::size_t wanted = at(options_.max_samples) * (num_extents > 1 ? 2 * num_extents : 1);
    auto [samples, complete] =
        sample_extents(program_, static_cast<int>(std::min(affordable, wanted)));
    result_.stats.every_boundary = complete;
    return samples;
  }

  static bool has_choices(const Cases& cases) {
    return std::any_of(cases.begin(), cases.end(),
                       [](const Case& one) { return waits_by_table(one.graph); });
  }

  // What was found may come of taking each entry by itself. If it is so for some table, then for
  // one that has what the findings say; otherwise nothing is known of tables that were not looked
  // at.
  void prove_in_doubt(const std::vector<std::vector<std::int64_t>>& samples) {
    std::vector<Finding> doubts = std::exchange(result_.findings, {});
    for (const Finding& doubt : doubts) {
      for (bool shuffled : {false, true}) {
        if (!doubt.cases.empty() && ok()) prove_with(doubt, samples, shuffled);
      }
    }
    if (ok()) prove_witnesses(samples);
    result_.stats.sampled_because =
        fmt::format("no table was found for which this happens, nor that there is none: {}: {}",
                    name(doubts[0].kind), doubts[0].text);
  }

  // Tables of the finding, or of its two launches in turn.
  void prove_with(const Finding& doubt, const std::vector<std::vector<std::int64_t>>& samples,
                  bool shuffled) {
    Cases cases;
    for (const auto& extents : samples) {
      for (int launch : {0, 1}) {
        std::vector<RankChoice> wanted;
        for (const ChosenCase& c : doubt.cases) {
          if (c.launch == launch) wanted.push_back({c.rank, choices_->facts(c.choice)});
        }
        if (wanted.empty()) continue;
        auto tables = table_with(program_, extents, wanted, shuffled);
        if (tables != nullptr) cases.push_back(expand_with(extents, *tables));
      }
    }
    context_.clear();
    if (!cases.empty()) prove_cases(cases);
  }

  bool ok() const { return result_.findings.empty(); }

  void add(FindingKind kind, const std::string& text, const std::string& where,
           const std::vector<ChosenCase>& cases = {}) {
    result_.findings.push_back(finding_with(kind, text, where, cases));
  }

  void check_resources() {
    int sms = 0, queues = 0;
    const char* what = "workers";
    for (const Role& role : program_.roles) {
      const Resource& r = role.resource;
      sms += r.num_own_sms();
      if (r.cluster_size > 1) what = "blocks of workers";
      if (r.kind == ResourceKind::kCopyEngine) queues += r.num_workers;
    }
    if (sms > options_.max_workers_per_rank) {
      add(FindingKind::kResources,
          fmt::format("{} {} per rank, the device holds {} at a time", sms, what,
                      options_.max_workers_per_rank),
          "");
    }
    if (queues > options_.max_copy_queues) {
      add(FindingKind::kResources,
          fmt::format("{} copy queues per rank of {}", queues, options_.max_copy_queues), "");
    }
  }

  // A pipe's slots are memory too, which its own synchronisation alone guards.
  void check_pipes() {
    std::string missing = missing_in_pipes(*options_.table);
    if (missing.empty()) return;
    for (const Role& role : program_.roles) {
      for (const Pipe& pipe : role.pipes) {
        return add(
            FindingKind::kRace,
            fmt::format("{}:{}: slots of pipe '{}' of role '{}', between the put and the get "
                        "and between the get and the next put\n    {}",
                        role.loc.file, role.loc.line, pipe.name, role.name, missing),
            "");
      }
    }
  }

  // What a launch adds to each counter is counted before the first, whatever the tables will be: a
  // notify that goes by one is refused then (ir/quota.h).
  void check_counting() {
    try {
      count_quotas(program_, extent_bounds(program_));
    } catch (const UserError& e) {
      add(FindingKind::kQuota, e.what(), "");
    }
  }

  // Of what some tables do, others may do elsewhere.
  void check_reach() {
    for (const auto& [text, where] : unmet_.findings()) {
      if (static_cast<int>(result_.findings.size()) == options_.max_findings) return;
      add(FindingKind::kOutside, text, where);
    }
    if (ok()) result_.notes = unmet_.notes();
  }

  // `witness`: which of sample_tables(), -1 for none but those of the options.
  Cases expand_all(const std::vector<std::vector<std::int64_t>>& samples, int witness) {
    Cases cases;
    cases.reserve(samples.size());
    for (const auto& extents : samples) {
      context_ = describe_extents(program_, extents);
      if (witness < 0) {
        cases.push_back(
            {expand(program_, extents, options_.tables, PipeLoopMode::kFold, choices_), context_});
        unmet_.add(cases.back().graph, context_);
        continue;
      }
      auto tables = sample_tables(program_, extents);
      cases.push_back(expand_with(extents, *tables[at(witness)]));
    }
    context_.clear();
    return cases;
  }

  Case expand_with(const std::vector<std::int64_t>& extents, const TableWitness& table) {
    std::string sizes = describe_extents(program_, extents);
    context_ = fmt::format("{}{}tables {}", sizes, sizes.empty() ? "" : ", ", table.name());
    return {expand(program_, extents, &table, PipeLoopMode::kFold), context_};
  }

  // Every size with each witness, then launches with one witness and another in turn.
  void prove_witnesses(const std::vector<std::vector<std::int64_t>>& samples) {
    result_.stats.every_table = false;
    int num_witnesses = static_cast<int>(sample_tables(program_, samples[0]).size());
    Cases mixed;
    for (int w = 0; w < num_witnesses && ok(); ++w) {
      prove_cases(expand_all(samples, w));
      mixed.push_back(std::move(expand_all({samples[0]}, w)[0]));
    }
    if (ok()) prove_cases(mixed);
  }

  void prove_cases(const Cases& cases, bool by_slices = true) {
    check_counters(cases, cases[0].graph.quota);
    if (!ok()) return;
    std::size_t events = cases[0].graph.num_events();
    Cases slices;
    if (by_slices && add_slices(cases, slices, num_threads(events)) && holds(slices, events))
      return;
    take(prove_all(cases, events));
  }

  // The slices of large graphs are kept, the graphs are not. Nothing is reported where they do not
  // do. `first`: of the first sample.
  bool holds_few_at_a_time(Cases first, const std::vector<std::vector<std::int64_t>>& samples) {
    std::size_t events = first[0].graph.num_events(), threads = num_threads(events);
    std::vector<std::int64_t> quota = first[0].graph.quota;
    Cases slices;
    slices.reserve(samples.size());
    for (std::size_t next = 1; !first.empty(); next += first.size()) {
      check_counters(first, quota);
      if (!ok() || !add_slices(first, slices, threads)) break;
      first.clear();
      auto begin = samples.begin() + static_cast<std::ptrdiff_t>(std::min(next, samples.size()));
      auto count = std::min<std::ptrdiff_t>(samples.end() - begin,
                                            static_cast<std::ptrdiff_t>(std::min(threads, kHeld)));
      first = expand_all({begin, begin + count}, -1);
    }
    result_.findings.clear();
    return slices.size() == samples.size() && holds(slices, events);
  }

  // Slices synchronise less than graphs and more alike (pipe_slice.h), so that few orders serve all
  // sizes. None are added, and false is returned, where a launch does not end.
  //
  // A launch that ends by itself ends after and beside others, too: were the ranks' launches made
  // one by one, each would begin with every counter at the base that its waits are relative to.
  static bool add_slices(const Cases& cases, Cases& slices, std::size_t threads) {
    std::vector<InstanceGraph> found(cases.size());
    std::vector<char> ends(cases.size(), 0);
    side_by_side(cases.size(), threads, [&](std::size_t i) {
      ends[i] = execute(Timeline{{&cases[i].graph}}).finished ? 1 : 0;
      if (ends[i] != 0) found[i] = without_idle_slots(cases[i].graph);
    });
    if (std::find(ends.begin(), ends.end(), 0) != ends.end()) return false;
    for (std::size_t i = 0; i < cases.size(); ++i) {
      slices.push_back({std::move(found[i]), cases[i].where});
    }
    return true;
  }

  // Whether nothing is found that would need more than the slices.
  bool holds(const Cases& slices, std::size_t events) {
    SizesVerdict verdict = prove_all(slices, events);
    for (const OrderVerdict& v : verdict.orders) {
      if (!v.findings.empty() || v.error != nullptr) return false;
    }
    take(std::move(verdict));
    result_.stats.events = std::max(result_.stats.events, events);
    return true;
  }

  std::size_t num_threads(std::size_t events) const {
    if (options_.threads > 0) return at(options_.threads);
    if (events < kFewEvents) return 1;
    return std::min<std::size_t>(kMostThreads, std::thread::hardware_concurrency());
  }

  // Checks number choices of tables that no graph has (check.cc), which all of them share.
  std::size_t num_checkers(std::size_t events) const {
    return choices_->any() ? 1 : num_threads(events);
  }

  void take(SizesVerdict verdict) {
    result_.stats.every_order &= verdict.every_order;
    for (OrderVerdict& v : verdict.orders) {
      if (v.error != nullptr) std::rethrow_exception(v.error);
      note(v.stats);
      for (Finding& f : v.findings) result_.findings.push_back(std::move(f));
    }
  }

  // `events`: of the largest whole graph.
  SizesVerdict prove_all(const Cases& cases, std::size_t events) const {
    constexpr std::size_t kMostMixed = 512;
    std::int64_t launches = 3 * std::int64_t{most_slots(program_)} + 1;
    if (launches * static_cast<std::int64_t>(events) > kMostEvents) {
      throw Rejected(
          fmt::format("buffers of {} slots take {} launches of {} events to look at, "
                      "more than {} events in all: fewer slots",
                      most_slots(program_), launches, events, kMostEvents));
    }
    std::vector<SizedGraph> sized;
    for (const Case& one : cases) sized.push_back({&one.graph, one.where});
    std::size_t affordable =
        std::max(kMinCases, options_.max_events / std::max<std::size_t>(1, events)) / 2;
    return prove_sizes(sized, options_, std::min(affordable, kMostMixed), num_checkers(events));
  }

  void check_counters(const Cases& cases, const std::vector<std::int64_t>& quota) {
    for (const Case& one : cases) {
      check_quota(quota, one);
      check_thresholds(one);
      if (!ok()) return;
    }
  }

  void check_quota(const std::vector<std::int64_t>& expected, const Case& one) {
    const InstanceGraph& graph = one.graph;
    for (std::size_t c = 0; c < graph.counters.size() && ok(); ++c) {
      if (graph.counters[c].kind != CounterKind::kSignal || graph.quota[c] == expected[c]) continue;
      add(FindingKind::kQuota,
          fmt::format("{} gets {} per launch here and {} elsewhere: every launch must add the same",
                      describe_counter(graph, static_cast<int>(c)), graph.quota[c], expected[c]),
          one.where);
    }
  }

  void check_thresholds(const Case& one) {
    const InstanceGraph& graph = one.graph;
    for (std::size_t a = 0; a < graph.agents.size(); ++a) {
      for (const Sync& s : graph.agents[a].syncs) {
        if (s.kind != SyncKind::kWait || s.amount <= graph.quota[at(s.counter)] || !ok()) continue;
        add(FindingKind::kQuota,
            fmt::format("{}: {} waits for {} to reach {}, but a launch adds only {}",
                        describe_loc(s.op), describe_agent(graph, static_cast<int>(a), s.tile),
                        describe_counter(graph, s.counter), s.amount, graph.quota[at(s.counter)]),
            one.where, {{.rank = graph.agents[a].rank, .choice = s.choice}});
      }
    }
  }

  void note(const ProofStats& group) {
    ProofStats& s = result_.stats;
    s.cases += group.cases;
    s.events = std::max(s.events, group.events);
    s.clocks = std::max(s.clocks, group.clocks);
    s.components = std::max(s.components, group.components);
    s.launches = std::max(s.launches, group.launches);
    s.rounds = std::max(s.rounds, group.rounds);
  }

  void finish() {
    result_.proved = ok();
    if (ok() && !result_.stats.every_order) {
      result_.notes.push_back(
          fmt::format("'{}' synchronises in too many ways, by its sizes, to look at launches of "
                      "all of them after each other: some orders are left out",
                      program_.name));
    }
    const ProofStats& s = result_.stats;
    result_.report =
        fmt::format("{}: {} on {} rank{}", result_.proved ? "proved" : "rejected", program_.name,
                    program_.world_size, program_.world_size == 1 ? "" : "s");
    if (result_.proved) {
      result_.report += fmt::format(" ({} cases{}{}, {} events per launch, {:.3f} s)", s.cases,
                                    s.every_boundary ? "" : ", boundaries thinned out",
                                    s.every_table ? "" : ", tables sampled", s.events, s.seconds);
    }
    int n = 0;
    for (const Finding& f : result_.findings) {
      result_.report += fmt::format("\n{}. {}\n    {}", ++n, name(f.kind), f.text);
    }
  }

  const Program& program_;
  const ProofOptions& options_;
  ProofResult result_;
  std::string context_;
  UnmetTensors unmet_;
  std::shared_ptr<TableChoices> choices_ = std::make_shared<TableChoices>();
};

}  // namespace

ProofResult prove(const Program& program, const ProofOptions& options) {
  return Prover(program, options).run();
}

}  // namespace stretto
