#include "stretto/proof/prove.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "stretto/base/at.h"
#include "stretto/base/errors.h"
#include "stretto/base/threads.h"
#include "stretto/ir/quota.h"
#include "stretto/ir/tables.h"
#include "stretto/ir/walk_budget.h"
#include "stretto/proof/alike_ranks.h"
#include "stretto/proof/expand.h"
#include "stretto/proof/hidden_sizes.h"
#include "stretto/proof/launch_patterns.h"
#include "stretto/proof/prove_steps.h"
#include "stretto/proof/quota_check.h"
#include "stretto/proof/reach.h"
#include "stretto/proof/sample.h"
#include "stretto/proof/size_conditions.h"
#include "stretto/proof/size_partition.h"
#include "stretto/proof/sync_kinds.h"
#include "stretto/proof/time_limit.h"

namespace stretto {
namespace {

// Of run-time sizes, however large the program is.
constexpr std::size_t kMinCases = 16;
// Programs of fewer events a launch are proved sooner than threads start; more threads would take
// more memory than some machines have, a gigabyte each where a program is large.
constexpr std::size_t kFewEvents = 20'000, kMostThreads = 16;
// Graphs with so many events are held a few at a time: four, and more up to so many events in all,
// a gigabyte and a half.
constexpr std::size_t kManyEvents = 100'000, kFewGraphs = 4, kHeldEvents = std::size_t{1} << 24;
// More events than this in all sizes together: their graphs are not held beside each other.
constexpr std::size_t kHeldTogether = std::size_t{1} << 22;
// So many vectors of sizes are looked at one by one; of others pieces are looked for first, up to
// so many.
constexpr std::size_t kFewVectors = 73, kMostPieces = 4096;
// Under witnesses fewer sizes are looked at: what they stand for is not known anyway.
constexpr std::size_t kManyWitnesses = 64;
// Of all launches that are laid out beside each other, some gigabytes.
constexpr std::int64_t kMostEvents = std::int64_t{1} << 27;

// Of the buffer with the most slots that ranks touch on each other.
std::string where_most_slots(const Program& program) {
  for (const Tensor& t : program.tensors) {
    bool met = t.kind == TensorKind::kBuffer && t.space == Space::kSymmetric;
    if (met && t.num_slots == most_slots(program))
      return fmt::format("{}:{}", t.loc.file, t.loc.line);
  }
  return "";
}

using Cases = std::vector<Case>;
using Samples = std::vector<std::vector<std::int64_t>>;  // extents of each

class Prover {
 public:
  Prover(const Program& program, const ProofOptions& options)
      : program_(program), options_(options) {}

  ProofResult run() {
    require_sizes(program_, options_);
    TimeLimit limit(options_.time_limit);
    auto begin = std::chrono::steady_clock::now();
    try {
      result_.findings = resource_findings(program_, options_);
      if (ok()) prove_samples();
      if (ok() && result_.stats.every_table) check_reach();
      if (ok()) check_counting();
    } catch (const TimeIsUp&) {
      result_.findings.clear();  // of sizes that nobody has come to confirm
      result_.within_limits = false;
      missing(kMissingLimit, "time",
              fmt::format("{:.3g} s on the clock, the limit",
                          static_cast<double>(options_.time_limit.count()) / 1000));
    } catch (const BeyondLimit& e) {
      result_.within_limits = false;
      missing(kMissingLimit, e.where, e.what_is_beyond);
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
    Samples bounds = {extent_bounds(program_)};
    result_.stats.every_table = options_.tables == nullptr;
    // A launch of the largest size is walked where pieces of sizes do not show all there is.
    if (holds_with_masks() || holds_with_runs()) return;
    // What is found where entries are open is so of each by itself, and maybe of no table.
    bool in_doubt = result_.stats.every_table && std::ranges::any_of(program_.tensors, is_table);
    try {
      prove_open(bounds);
    } catch (const DependsOnTable& reason) {
      note_sampled(reason);
      walk_once(bounds);
      return prove_witnesses(sampled(bounds, false));
    } catch (const BeyondLimit&) {
      throw;
    } catch (const Rejected& e) {
      if (!in_doubt) throw;
      add(FindingKind::kIllFormed, e.what(), context_);
    } catch (const UserError& e) {
      if (!in_doubt) throw;
      add(FindingKind::kIllFormed, e.what(), context_);
    }
    if (!ok() && in_doubt) prove_in_doubt(bounds);
  }

  // With graphs that stand for every table.
  void prove_open(const Samples& bounds) {
    Cases cases = expand_all(bounds, -1);  // the largest, until it is known how many are affordable
    events_ = cases[0].graph.num_events();
    Samples samples = sampled(bounds, true);
    bool few_at_a_time =
        samples.size() > 1 && (events_ >= kManyEvents || samples.size() * events_ >= kHeldTogether);
    if (few_at_a_time) require_ends(cases);
    if (few_at_a_time && holds_few_at_a_time(samples)) return;
    if (samples.size() > 1 || parts_ != nullptr) cases = expand_all(samples, -1);
    if (!few_at_a_time) require_ends(cases);
    prove_cases(cases, !few_at_a_time);
    if (!ok() && parts_ != nullptr) confirm();
  }

  // So that it is known how large a launch is.
  void walk_once(const Samples& bounds) {
    if (events_ == 0) events_ = expand_all(bounds, 0)[0].graph.num_events();
  }

  void note_sampled(const DependsOnTable& reason) {
    result_.stats.sampled_because = "a table decides " + reason.what;
    sampled_where_ = reason.where;
  }

  // Run-time sizes: all of them, or ones that stand for all, or as many as launches of so many
  // events allow.
  Samples sampled(const Samples& bounds, bool open_tables) {
    Samples samples = bounds;
    if (!options_.bounds_only) samples = sampled(bounds[0].size(), open_tables);
    for (const std::vector<std::int64_t>& extents : options_.also_at) {
      if (std::ranges::find(samples, extents) == samples.end()) samples.push_back(extents);
    }
    num_sizes_ = samples.size();
    return samples;
  }

  Samples sampled(std::size_t num_extents, bool open_tables) {
    std::size_t most = options_.max_enumerated / std::max<std::size_t>(1, events_);
    if (!open_tables) most /= kManyWitnesses;
    std::size_t few = options_.partition ? std::min(most, kFewVectors) : most;
    std::optional<Samples> all = all_extents(program_, few);
    if (!all && open_tables && options_.tables == nullptr) {
      std::vector<bool> hidden = hidden_sizes(program_);
      if (std::ranges::count(hidden, true) > 0) all = all_extents(program_, most, hidden);
    }
    if (all) return std::move(*all);
    NoPieces why;
    try {
      if (options_.partition) parts_ = partition_sizes(program_, std::min(most, kMostPieces), why);
    } catch (const Error&) {
      context_ = describe_extents(program_, why.extents);
      throw;
    }
    if (no_pieces_.expression.empty()) no_pieces_ = std::move(why);
    if (parts_ != nullptr) {
      Samples samples;
      for (const SizePiece& p : parts_->pieces) {
        samples.push_back(extents_at(parts_->axes, p.sample));
      }
      return samples;
    }
    if ((all = all_extents(program_, most))) return std::move(*all);
    std::size_t affordable = std::max(kMinCases, affordable_launches());
    std::size_t wanted = at(options_.max_samples) * (num_extents > 1 ? 2 * num_extents : 1);
    Samples samples = sample_extents(program_, static_cast<int>(std::min(affordable, wanted)));
    result_.stats.every_size = false;
    if (no_pieces_.where.empty() && no_pieces_.expression.empty()) {
      no_pieces_.expression = fmt::format(
          "{} events a launch, of which all vectors of sizes have more than {} together", events_,
          options_.max_enumerated);
    }
    return samples;
  }

  // All sizes in few pieces (size_masks.h), where that shows all there is to show. Otherwise
  // nothing is known yet.
  bool holds_with_masks() {
    bool few = options_.bounds_only || !options_.partition || options_.tables != nullptr ||
               all_extents(program_, kFewVectors).has_value();
    if (few) return false;
    // Shares are rounded up, mostly. Where that is not so, or not alone, sizes that are written
    // with their remainder fall into fewer pieces.
    return holds_with_digits(/*short_of=*/true) ||
           (has_remainders(program_) && holds_with_digits(/*short_of=*/false));
  }

  bool holds_with_digits(bool short_of) {
    if (holds_with_digits(short_of, WaitsOpen::kAll)) return true;
    // What launches rely on may be shown by waits that are under a condition: then it is decided,
    // at first where few pieces come of that.
    return std::ranges::any_of(program_.roles, waits_under_condition) &&
           (holds_with_digits(short_of, WaitsOpen::kCostly) ||
            holds_with_digits(short_of, WaitsOpen::kNone));
  }

  // Where sizes fall into too many pieces they are written with one digit more. Where many are as
  // large as the first, that is tried before, as tiles of a share make a piece for each number of
  // them, and one where they have a digit of their own.
  bool holds_with_digits(bool short_of, WaitsOpen waits) {
    constexpr int kFewTimes = 4;
    const LeftOpen open{.waits = waits, .short_of = short_of};
    bool blocks = short_of && counts_blocks(program_);  // once, whatever the other digits
    std::optional<bool> held = holds_with_masks(open, blocks ? kFewTimes : 0);
    if (!held && blocks && no_pieces_.too_large) {
      LeftOpen by_blocks = open;
      by_blocks.blocks = true;
      if (holds_with_masks(by_blocks, kFewTimes).value_or(false)) return true;
      held = holds_with_masks(open);
    }
    if (!held && blocks) held = holds_with_masks({.waits = waits, .blocks = true});
    return held.value_or(false);
  }

  // Absent where there are no such pieces.
  std::optional<bool> holds_with_masks(LeftOpen open, int most_times = 0) {
    // Conditions that cost few sizes make few pieces, or it is not that on which launches rely.
    std::size_t events = options_.max_enumerated / (open.waits == WaitsOpen::kCostly ? 4 : 1);
    // Of eight ranks' shares small sizes leave some empty, in 27 pieces: each is a small one.
    const MostPieces most{.at_least = 8 * kMinCases,
                          .at_most = kMostPieces,
                          .events = events,
                          .most_times = most_times};
    no_pieces_.too_large = false;
    std::optional<MaskedSlices> found = masked_slices(program_, most, open, no_pieces_);
    if (!found) return {};
    for (std::optional<Case>& one : found->slices) share(*one, {});
    events_ = found->events;
    if (!slices_hold(found->slices)) return false;
    unmet_.add(found->unmet);
    return true;
  }

  // Sizes one by one, with few events for the slots of each, where that shows all there is to show
  // of programs with tables. Otherwise nothing is known yet.
  bool holds_with_runs() {
    bool tables = options_.tables == nullptr && std::ranges::any_of(program_.tensors, is_table);
    if (!tables) return false;
    ProofStats before = result_.stats;
    std::optional<bool> held;
    try {
      InstanceGraph largest = expand_with_runs(program_, extent_bounds(program_));
      events_ = largest.num_events();
      held = runs_hold(sampled({extent_bounds(program_)}, true), std::move(largest));
    } catch (const DependsOnTable&) {
    } catch (const Rejected&) {  // said by those that walk every slot
    }
    if (held.value_or(false)) return true;
    result_.stats = before;
    parts_ = nullptr;
    no_pieces_ = {};
    return false;
  }

  // `largest`: at the bounds.
  bool runs_hold(const Samples& samples, InstanceGraph largest) {
    if (!result_.stats.every_size || parts_ != nullptr) return false;
    std::vector<std::optional<Case>> slices(samples.size());
    std::vector<UnmetTensors> unmet(samples.size());
    std::vector<std::int64_t> quota;
    for (std::size_t i = 0; i < samples.size(); ++i) {
      std::string where = describe_extents(program_, samples[i]);
      bool at_bounds = i == 0 && samples[i] == largest.extents;
      Case one{at_bounds ? std::move(largest) : expand_with_runs(program_, samples[i]), where};
      unmet[i].add(one.graph, where);
      if (i == 0) quota = one.graph.quota;
      if (!wrong_counter(one.graph, where, quota)) slices[i] = slice_of(one);
      if (!slices[i]) return false;
    }
    for (std::size_t i = 0; i < slices.size(); ++i) share(*slices[i], unmet[i]);
    return slices_hold(slices);
  }

  // What is found of pieces of sizes is so of what they may reach at any of them. It counts where
  // it is so at one of them.
  void confirm() {
    std::vector<Finding> doubts = std::exchange(result_.findings, {});
    std::shared_ptr<const SizePartition> parts = std::exchange(parts_, nullptr);
    std::set<std::vector<std::int64_t>> seen;
    Samples samples;
    for (const SizePiece& p : parts->pieces) {
      for (const SizePoint& point : {p.sample, p.box.lo, p.box.hi}) {
        std::vector<std::int64_t> extents = extents_at(parts->axes, point);
        if (seen.insert(extents).second) samples.push_back(extents);
      }
    }
    prove_cases(expand_all(samples, -1));
    if (!ok()) return;
    missing(kMissingSizes, "launches of different sizes after each other",
            fmt::format("{}: {}", name(doubts[0].kind), doubts[0].text));
  }

  // What was found may come of taking each entry by itself. If it is so for some tables, then for
  // such as have what the findings say, or for some of many; otherwise nothing is known of tables
  // that were not looked at.
  void prove_in_doubt(const Samples& bounds) {
    const std::vector<Finding> doubts = std::exchange(result_.findings, {});
    parts_ = nullptr;
    context_.clear();
    walk_once(bounds);
    for (const Finding& doubt : doubts) {
      if (ok()) prove_with(doubt, doubt.extents);
    }
    std::set<Samples> seen;
    for (const Finding& doubt : doubts) {
      const Samples& at = doubt.extents.empty() ? bounds : doubt.extents;
      if (ok() && seen.insert(at).second) prove_with_many(at);
    }
    if (!ok()) return;
    Samples samples = sampled(bounds, false);
    for (const Finding& doubt : doubts) {
      if (ok()) prove_with(doubt, samples);
    }
    if (ok()) prove_witnesses(samples);
    sampled_where_ = line_of(doubts[0]);
    result_.stats.sampled_because =
        fmt::format("no table was found for which this happens, nor that there is none: {}: {}",
                    name(doubts[0].kind), doubts[0].text);
  }

  // The source line that a finding begins with, if it does.
  static std::string line_of(const Finding& finding) {
    std::string first = finding.text.substr(0, finding.text.find(": "));
    bool is_line = first.find(':') != std::string::npos && first.find('\n') == std::string::npos;
    return is_line ? first : "";
  }

  // Tables of the finding, or of its two launches in turn.
  void prove_with(const Finding& doubt, const Samples& samples) {
    for (bool shuffled : {false, true}) {
      Cases cases;
      for (const auto& extents : samples) {
        for (int launch : {0, 1}) {
          std::vector<RankChoice> wanted;
          for (const ChosenCase& c : doubt.cases) {
            if (c.launch == launch) wanted.push_back({c.rank, choices_->facts(c.choice)});
          }
          if (wanted.empty()) continue;
          auto tables = table_with(program_, extents, wanted, shuffled);
          if (tables != nullptr) cases.push_back(expand_with(extents, *tables, context_));
        }
      }
      context_.clear();
      if (!cases.empty() && ok()) prove_cases(cases);
    }
  }

  // At each of these sizes the witnesses, and more tables by lot where launches are not large. Some
  // are looked at together, as launches with different tables may follow each other.
  void prove_with_many(const Samples& samples) {
    constexpr std::size_t kMostTables = 48, kMostTogether = 8;
    const std::size_t events = std::max<std::size_t>(1, events_ * samples.size());
    const std::size_t most = std::clamp(options_.max_events / events, kMostTogether, kMostTables);
    const std::size_t together =
        std::clamp(kHeldEvents / 4 / events, std::size_t{1}, kMostTogether);
    for (std::size_t begin = 0; begin < most && ok(); begin += together) {
      Cases cases;
      for (const auto& extents : samples) {
        auto witnesses = sample_tables(program_, extents);
        for (std::size_t i = begin; i < begin + together; ++i) {
          auto tables =
              i < witnesses.size() ? std::move(witnesses[i]) : narrow_tables(program_, extents, i);
          cases.push_back(expand_with(extents, *tables, context_));
        }
      }
      context_.clear();
      prove_cases(cases);
    }
  }

  bool ok() const { return result_.findings.empty(); }

  void add(FindingKind kind, const std::string& text, const std::string& where,
           const std::vector<ChosenCase>& cases = {}) {
    result_.findings.push_back(finding_with(kind, text, where, cases));
  }

  // What a launch adds to each counter is counted before the first, whatever the tables will be: a
  // notify that goes by one is refused then (ir/quota.h).
  void check_counting() {
    try {
      count_quotas(program_, extent_bounds(program_));
    } catch (const BeyondLimit&) {
      throw;
    } catch (const UserError& e) {
      add(FindingKind::kQuota, e.what(), describe_extents(program_, extent_bounds(program_)));
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
  Cases expand_all(const Samples& samples, int witness) {
    Cases cases(samples.size());
    std::vector<UnmetTensors> unmet(samples.size());
    for_each_size(samples, num_threads(), [&](std::size_t i, std::string& where) {
      if (witness < 0) {
        cases[i] = expand_one(samples, i, where, unmet[i]);
      } else {
        auto tables = sample_tables(program_, samples[i]);
        cases[i] = expand_with(samples[i], *tables[at(witness)], where);
      }
    });
    for (std::size_t i = 0; i < cases.size() && witness < 0; ++i) share(cases[i], unmet[i]);
    return cases;
  }

  Case expand_one(const Samples& samples, std::size_t i, std::string& where,
                  UnmetTensors& unmet) const {
    where = describe_extents(program_, samples[i]);
    Case one{expanded(samples, i), where};
    unmet.add(one.graph, where);
    return one;
  }

  InstanceGraph expanded(const Samples& samples, std::size_t i) const {
    if (parts_ == nullptr) {
      return expand(program_, samples[i], options_.tables, PipeLoopMode::kFold);
    }
    const SizePiece& piece = parts_->pieces[i];
    SizeRegion region(parts_->axes, piece.box, piece.sample);
    return expand(program_, parts_->axes, region);
  }

  void require_ends(const Cases& cases) const {
    bool end = ends_however_often(program_, cases, num_threads());
    if (!end) throw DependsOnTable{"how often a loop over slots runs"};
  }

  // What was expanded by itself, with what is known of other sizes.
  void share(Case& one, const UnmetTensors& unmet) {
    share_choices(one.graph, choices_);
    unmet_.add(unmet);
    if (unsure_entry_.first.empty()) unsure_entry_ = one.graph.unsure_entry;
  }

  Case expand_with(const std::vector<std::int64_t>& extents, const TableWitness& table,
                   std::string& where) const {
    std::string sizes = describe_extents(program_, extents);
    where = fmt::format("{}{}tables {}", sizes, sizes.empty() ? "" : ", ", table.name());
    return {expand(program_, extents, &table, PipeLoopMode::kFold), where};
  }

  // work(i, where), on so many threads. What the first that throws throws is thrown on, with where.
  template <typename Work>
  void for_each_size(const Samples& samples, std::size_t threads, const Work& work) {
    std::vector<std::exception_ptr> errors(samples.size());
    std::vector<std::string> where(samples.size());
    TimeLimit::side_by_side(samples.size(), threads, [&](std::size_t i) {
      try {
        work(i, where[i]);
      } catch (const std::bad_alloc&) {
        throw;  // of any size, and no room to keep many
      } catch (...) {
        errors[i] = std::current_exception();
      }
    });
    context_.clear();
    auto first = std::ranges::find_if(errors, [](const auto& e) { return e != nullptr; });
    if (first == errors.end()) return;
    context_ = where[static_cast<std::size_t>(first - errors.begin())];
    std::rethrow_exception(*first);
  }

  // Every size with each witness, then launches with one witness and another in turn.
  void prove_witnesses(const Samples& samples) {
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
    for (const Case& one : cases) {
      std::optional<Finding> found = wrong_counter(one.graph, one.where, cases[0].graph.quota);
      if (found) return result_.findings.push_back(std::move(*found));
    }
    if (by_slices) {
      std::vector<std::optional<Case>> slices(cases.size());
      TimeLimit::side_by_side(cases.size(), num_threads(),
                              [&](std::size_t i) { slices[i] = slice_of(cases[i]); });
      if (slices_hold(slices)) return;
    }
    take(prove_all(cases));
  }

  // The slices of large graphs are kept, the graphs are not. Nothing is reported where they do not
  // do.
  bool holds_few_at_a_time(const Samples& samples) {
    UnmetTensors unmet_at_first;
    std::string at_first;
    Case first = expand_one(samples, 0, at_first, unmet_at_first);
    const std::vector<std::int64_t> quota = first.graph.quota;
    std::vector<std::optional<Case>> slices(samples.size());
    std::vector<UnmetTensors> unmet(samples.size());
    std::atomic<bool> holds = true;
    std::size_t held = std::max(kFewGraphs, kHeldEvents / events_);
    for_each_size(samples, std::min(num_threads(), held), [&](std::size_t i, std::string& where) {
      if (!holds) return;
      Case one = i == 0 ? std::move(first) : expand_one(samples, i, where, unmet[i]);
      if (!wrong_counter(one.graph, one.where, quota)) slices[i] = slice_of(one);
      if (!slices[i]) holds = false;
    });
    if (!holds) return false;
    unmet[0] = unmet_at_first;
    for (std::size_t i = 0; i < slices.size(); ++i) share(*slices[i], unmet[i]);
    return slices_hold(slices);
  }

  // Whether nothing is found that would need more than the slices, and all are there.
  bool slices_hold(std::vector<std::optional<Case>>& found) {
    Cases slices;
    for (std::optional<Case>& one : found) {
      if (!one) return false;
      slices.push_back(std::move(*one));
    }
    SizesVerdict verdict = prove_all(slices);
    for (const OrderVerdict& v : verdict.orders) {
      if (v.findings.empty() && v.error == nullptr) continue;
      if (!v.findings.empty()) no_pieces_ = in_doubt(v.findings[0]);
      return false;
    }
    take(std::move(verdict));
    result_.stats.events = std::max(result_.stats.events, events_);
    return true;
  }

  std::size_t affordable_launches() const {
    return options_.max_events / std::max<std::size_t>(1, events_);
  }

  std::size_t num_threads() const {
    if (options_.threads > 0) return at(options_.threads);
    if (events_ < kFewEvents) return 1;
    return std::min(kMostThreads, num_processors());
  }

  void take(SizesVerdict verdict) {
    result_.stats.every_order &= !verdict.left_out;
    if (verdict.left_out && !orders_left_out_) orders_left_out_ = std::move(verdict.left_out);
    for (OrderVerdict& v : verdict.orders) {
      if (v.error != nullptr) std::rethrow_exception(v.error);
      note(v.stats);
      for (Finding& f : v.findings) result_.findings.push_back(std::move(f));
    }
  }

  SizesVerdict prove_all(const Cases& cases) const {
    constexpr std::size_t kMostMixed = 2048;
    std::int64_t launches = 3 * std::int64_t{most_slots(program_)} + 1;
    if (launches * static_cast<std::int64_t>(events_) > kMostEvents) {
      throw BeyondLimit(where_most_slots(program_),
                        fmt::format("buffers of {} slots take {} launches of {} events to look at, "
                                    "more than {} events in all: fewer slots",
                                    most_slots(program_), launches, events_, kMostEvents));
    }
    std::vector<SizedGraph> sized;
    for (const Case& one : cases) sized.push_back({&one.graph, one.where});
    std::size_t affordable = 2 * std::max(kMinCases, affordable_launches());
    return prove_sizes(sized, options_, std::min(affordable, kMostMixed), num_threads());
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

  void missing(const std::string& what, const std::string& where, const std::string& expression) {
    result_.missing.push_back({.what = what, .where = where, .expression = expression});
  }

  void finish() {
    note_missing();
    conclude(program_, options_.bounds_only, result_);
  }

  void note_missing() {
    const ProofStats& s = result_.stats;
    if (!s.every_size) {
      missing(kMissingSizes,
              fmt::format("{} were looked at of those up to {}", num_sizes_,
                          describe_extents(program_, extent_bounds(program_))),
              no_pieces());
    }
    if (!s.every_table) {
      std::string at = sampled_where_.empty() ? "" : sampled_where_ + ": ";
      missing(kMissingTables, at + "some were looked at that stand for none but themselves",
              s.sampled_because.empty() ? "these were asked for" : s.sampled_because);
    }
    if (!unsure_entry_.first.empty()) {
      missing(kMissingEntries, unsure_entry_.first, unsure_entry_.second);
    }
    if (orders_left_out_) {
      missing(kMissingOrders, orders_left_out_->where, orders_left_out_->expression);
    }
  }

  // What larger pieces do not show may be so at no size.
  static NoPieces in_doubt(const Finding& finding) {
    return {.where = "", .expression = finding.text.substr(0, finding.text.find('\n'))};
  }

  std::string no_pieces() const {
    const std::string &where = no_pieces_.where, &expression = no_pieces_.expression;
    return where + (where.empty() || expression.empty() ? "" : ": ") + expression;
  }

  const Program& program_;
  const ProofOptions& options_;
  ProofResult result_;
  std::string context_;     // of what is thrown: a size
  std::size_t events_ = 0;  // of a launch of the largest size
  std::size_t num_sizes_ = 1;
  std::shared_ptr<const SizePartition> parts_;  // of which the samples are, one of each
  NoPieces no_pieces_;                          // why all sizes were not cut into few
  std::string sampled_where_;                   // why tables were: a source line
  std::optional<OrdersLeftOut> orders_left_out_;
  UnmetTensors unmet_;
  std::pair<std::string, std::string> unsure_entry_;
  std::shared_ptr<TableChoices> choices_ = std::make_shared<TableChoices>();
};

// Of ranks that do the same, each by itself. Absent where one of them is not proved: what is wrong
// or missing is said of all ranks then.
std::optional<ProofResult> prove_one_of_alike(const Program& program, const ProofOptions& options) {
  bool every_table = options.tables == nullptr;  // those of options may differ from rank to rank
  if (!options.one_of_alike || !every_table || !ranks_are_alike(program)) return {};
  Program one = one_of_alike(program);
  ProofResult result = Prover(one, options).run();
  if (!result.proved() && result.within_limits) return {};
  result.stats.events *= at(program.world_size);
  conclude(program, options.bounds_only, result);
  return result;
}

}  // namespace

ProofResult prove(const Program& program, const ProofOptions& options) {
  auto begin = std::chrono::steady_clock::now();
  if (std::optional<ProofResult> of_one = prove_one_of_alike(program, options)) return *of_one;
  ProofOptions left = options;
  if (options.time_limit.count() > 0) {
    auto spent = std::chrono::steady_clock::now() - begin;
    left.time_limit -= std::chrono::duration_cast<std::chrono::milliseconds>(spent);
    left.time_limit = std::max(left.time_limit, std::chrono::milliseconds{1});
  }
  return Prover(program, left).run();
}

}  // namespace stretto
