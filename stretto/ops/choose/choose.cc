#include "stretto/ops/choose/choose.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <limits>

#include "stretto/base/errors.h"
#include "stretto/base/json.h"
#include "stretto/base/threads.h"
#include "stretto/base/turn.h"
#include "stretto/compiler.h"
#include "stretto/gpu/gpu_code.h"
#include "stretto/ir/printer.h"
#include "stretto/ops/choose/choice_cache.h"
#include "stretto/predict/prediction.h"

namespace stretto {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr std::chrono::minutes kLongestWait{10};  // for another's ranking, which takes seconds

double must_predict(const Candidate& candidate, const predict::Machine& machine, bool eager) {
  Lowered compiled = lower(candidate.program());
  predict::Timetable plan =
      predict::build_timetable(compiled, machine, {.eager = eager, .tables = candidate.tables});
  return predict::run_timetable(plan).seconds * 1e3;
}

// Of a program that does not pass or does not fit the machine: never.
double predicted_ms(const Candidate& candidate, const predict::Machine& machine, bool eager) {
  try {
    return must_predict(candidate, machine, eager);
  } catch (const UserError&) {
    return kNever;
  } catch (const Rejected&) {
    return kNever;
  }
}

double sequence_ms(const OpCandidates& candidates, const predict::Machine& machine, bool eager) {
  double sum = 0;
  for (const OpCandidates::Step& step : candidates.sequence) {
    OpCandidates offered = stretto::candidates(step, {.sms = machine.num_sms});
    sum += rank_candidates(offered, machine, eager).front().predicted_ms;
  }
  return sum;
}

std::string sequence_text(const OpCandidates& candidates) {
  std::vector<std::string> steps;
  for (const OpCandidates::Step& step : candidates.sequence) steps.push_back(step.op);
  return fmt::format("sequence of {}", fmt::join(steps, " and "));
}

// `measured`: by whom and how.
std::string key_of(const std::string& op, const OpShape& s, const OpCandidates& candidates,
                   const ChooseOptions& o, const std::string& measured) {
  std::string key = fmt::format("{} m={} n={} k={} {} P={} eager={} fused={} measured={}\n{}\n", op,
                                s.m, s.n, s.k, short_name(s.dtype), s.world_size, o.eager,
                                o.allow_fused, measured, predict::to_json(o.machine).dump());
  if (candidates.fused.front().tables) key += "for tables of a usual launch\n";
  if (!candidates.sequence.empty()) key += sequence_text(candidates) + "\n";
  for (const Candidate& c : candidates.fused) key += c.config + "\n";
  return key + print(candidates.fused.front().program());
}

std::string key_of_callers(const std::string& op, const OpShape& shape,
                           const OpCandidates& candidates, const ChooseOptions& options) {
  return key_of(op, shape, candidates, options, "caller:" + options.measured_on);
}

ConfigChoice choice_of(const RankedCandidate& ranked, const OpCandidates& candidates,
                       double measured) {
  return {.is_sequence = ranked.is_sequence(),
          .config = ranked.is_sequence()
                        ? sequence_text(candidates)
                        : candidates.fused[static_cast<std::size_t>(ranked.index)].config,
          .predicted_ms = ranked.predicted_ms,
          .measured_ms = measured};
}

// The first that a GPU can hold, which predictions do not ask for. The default, whose rules come of
// measurements, or with few rows the sequence, unless another is predicted to be surely faster.
ConfigChoice by_prediction(std::vector<RankedCandidate> ranked, const OpCandidates& candidates) {
  bool sequence_first = candidates.prefers_sequence && !candidates.sequence.empty();
  int preferred = sequence_first ? RankedCandidate::kSequence : 0;
  auto first = std::ranges::find(ranked, preferred, &RankedCandidate::index);
  bool sure = first == ranked.end() ||
              ranked.front().predicted_ms <
                  part_to_be_chosen(candidates.shape.m, sequence_first) * first->predicted_ms;
  if (!sure) std::rotate(ranked.begin(), first, first + 1);
  for (const RankedCandidate& r : ranked) {
    if (r.is_sequence()) return choice_of(r, candidates, 0);
    const Candidate& candidate = candidates.fused[static_cast<std::size_t>(r.index)];
    if (has_gpu_lowering(lower(candidate.program()))) {
      return choice_of(r, candidates, 0);
    }
  }
  throw UserError(candidates.desc + ": no candidate fits a GPU");
}

ConfigChoice by_measurement(const std::vector<RankedCandidate>& ranked,
                            const OpCandidates& candidates, const ChooseOptions& options) {
  const RankedCandidate* best = nullptr;
  double best_ms = 0;
  int measured = 0;
  for (const RankedCandidate& r : ranked) {
    if (!r.is_sequence() && measured >= options.most_measured) continue;
    const Candidate* candidate =
        r.is_sequence() ? nullptr : &candidates.fused[static_cast<std::size_t>(r.index)];
    auto [ms, fastest] = options.measure(candidate);
    if (!(ms > 0)) continue;  // the next one may run
    measured += r.is_sequence() ? 0 : 1;
    if (!fastest) continue;
    best_ms = ms;
    best = &r;
  }
  if (best == nullptr) throw UserError(candidates.desc + ": no candidate runs");
  return choice_of(*best, candidates, best_ms);
}

}  // namespace

// The part of the default's time that another must be predicted to stay under. It is as far from 1
// as predictions of configs of one shape err beside each other (docs/performance/prediction.md,
// 'Why the defaults are what they are').
double part_to_be_chosen(std::int64_t m, bool sequence_preferred) {
  constexpr std::int64_t kFewRows = 256;
  if (sequence_preferred) return 0.8;
  return m <= kFewRows ? 0.9 : 0.95;
}

std::vector<RankedCandidate> rank_candidates(const OpCandidates& candidates,
                                             const predict::Machine& machine, bool eager) {
  std::vector<RankedCandidate> ranked(candidates.fused.size());
  side_by_side(ranked.size(), num_processors(), [&](std::size_t i) {
    ranked[i] = {static_cast<int>(i), predicted_ms(candidates.fused[i], machine, eager)};
  });
  if (!candidates.sequence.empty()) {
    ranked.push_back({RankedCandidate::kSequence, sequence_ms(candidates, machine, eager)});
  }
  std::erase_if(ranked, [](const RankedCandidate& r) { return r.predicted_ms == kNever; });
  if (ranked.empty()) {  // the default says why
    must_predict(candidates.fused.front(), machine, eager);
    throw UserError(candidates.desc + ": no config can be predicted on machine " + machine.name);
  }
  std::stable_sort(ranked.begin(), ranked.end(),
                   [](const auto& a, const auto& b) { return a.predicted_ms < b.predicted_ms; });
  return ranked;
}

const Candidate* find_candidate(const OpCandidates& candidates, const std::string& config) {
  for (const Candidate& c : candidates.fused) {
    if (c.config == config) return &c;
  }
  return nullptr;
}

std::vector<Candidate> steps_of(const ConfigChoice& choice, const OpCandidates& candidates,
                                const ChooseOptions& options) {
  if (!choice.is_sequence) {
    const Candidate* found = find_candidate(candidates, choice.config);
    STRETTO_CHECK(found != nullptr, "a choice is a candidate");
    return {*found};
  }
  std::vector<Candidate> steps;
  for (const OpCandidates::Step& step : candidates.sequence) {
    OpCandidates offered = stretto::candidates(step, {.sms = options.machine.num_sms});
    ConfigChoice of_step =
        choose(step.op, step.shape, offered, {.machine = options.machine, .eager = options.eager});
    steps.push_back(steps_of(of_step, offered, options).front());
  }
  return steps;
}

std::vector<Program> programs_of(const ConfigChoice& choice, const OpCandidates& candidates,
                                 const ChooseOptions& options) {
  std::vector<Program> programs;
  for (const Candidate& step : steps_of(choice, candidates, options)) {
    programs.push_back(step.program());
  }
  return programs;
}

void keep_measured(const std::string& op, const OpShape& shape, const OpCandidates& candidates,
                   const ChooseOptions& options, const ConfigChoice& choice) {
  keep_choice(key_of_callers(op, shape, candidates, options), choice);
}

ConfigChoice choose(const std::string& op, const OpShape& shape, const OpCandidates& candidates,
                    const ChooseOptions& options) {
  auto find_at = [&](const std::string& key) -> std::optional<ConfigChoice> {
    std::optional<ConfigChoice> kept = read_choice(key);
    if (kept && (kept->is_sequence || find_candidate(candidates, kept->config))) return kept;
    return std::nullopt;
  };
  if (options.use_cache && !options.measure && !options.measured_on.empty()) {
    auto kept = find_at(key_of_callers(op, shape, candidates, options));
    if (kept) return *kept;
  }
  std::string key = key_of(
      op, shape, candidates, options,
      options.measure ? fmt::format("{}:{}", options.most_measured, options.measured_on) : "0:");
  auto find = [&] { return find_at(key); };
  // The ranks of a world need the same choices at the same time; they measure together.
  std::optional<Turn> turn;
  if (options.use_cache) {
    if (std::optional<ConfigChoice> kept = find()) return *kept;
    if (!options.measure) {
      turn.emplace(turn_of_choice(key));
      if (auto made = made_by_another(*turn, kLongestWait, find)) return *made;
    }
  }
  OpCandidates offered = candidates;
  if (!options.allow_fused && !candidates.sequence.empty()) offered.fused.clear();
  std::vector<RankedCandidate> ranked = rank_candidates(offered, options.machine, options.eager);
  ConfigChoice choice = options.measure ? by_measurement(ranked, candidates, options)
                                        : by_prediction(ranked, candidates);
  if (options.use_cache) keep_choice(key, choice);
  return choice;
}

}  // namespace stretto
