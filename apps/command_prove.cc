#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>

#include "apps/commands.h"
#include "apps/gpu_build.h"
#include "apps/number_checks.h"
#include "apps/program_source.h"
#include "apps/prove_large.h"
#include "apps/shape_options.h"
#include "stretto/base/env.h"
#include "stretto/base/errors.h"
#include "stretto/base/json.h"
#include "stretto/base/say.h"
#include "stretto/compiler.h"
#include "stretto/ops/catalog/catalog.h"
#include "stretto/ops/catalog/gpu_shape.h"
#include "stretto/proof/mutation/run_mutants.h"
#include "stretto/proof/prove.h"

namespace stretto {
namespace {

struct ProveCommand {
  std::string source, ranks = "1..8", dtype, target = "cpu";
  OpShape shape;
  bool all = false, large = false, mutants = false, json = false;
  bool fixed_sizes = false;
  int limit_s = LargeOptions{}.limit_s, limit_mb = LargeOptions{}.limit_mb;
  const CLI::App* command = nullptr;
};

struct ProveTotals {
  int programs = 0, proved = 0, fixed_sizes = 0, not_complete = 0, rejected = 0;
  nlohmann::json results = nlohmann::json::array();
  int mutants = 0, mutants_rejected = 0, mutants_not_complete = 0, unexplained = 0;
  nlohmann::json survivors = nlohmann::json::array();
};

// What a GPU could not run is not proved for one: as `compile` refuses it.
void check_target(const NamedProgram& named, const ProveCommand& options) {
  if (options.target == "cuda") generate_for_gpu(named.program);
}

nlohmann::json to_json(const std::string& label, const ProofResult& result) {
  nlohmann::json missing = nlohmann::json::array();
  for (const Missing& m : result.missing) {
    missing.push_back({{"what", m.what}, {"where", m.where}, {"expression", m.expression}});
  }
  return {{"label", label},
          {"verdict", name(result.verdict)},
          {"missing", missing},
          {"cases", result.stats.cases},
          {"events", result.stats.events},
          {"seconds", result.stats.seconds}};
}

void prove_one(const NamedProgram& named, ProveTotals& totals) {
  Program schedule = lower(named.program).program();
  ProofResult result = prove(schedule, {.time_limit = env_proof_limit()});
  ++totals.programs;
  totals.proved += result.proved() ? 1 : 0;
  totals.fixed_sizes += result.verdict == Verdict::kProvedAtFixedSizes ? 1 : 0;
  totals.not_complete += result.verdict == Verdict::kNotComplete ? 1 : 0;
  totals.rejected += result.rejected() ? 1 : 0;
  totals.results.push_back(to_json(named.label, result));
  say("{}: {} ({:.3f} s)\n", named.label, result.rejected() ? "REJECTED" : name(result.verdict),
      result.stats.seconds);
  for (const Missing& m : result.missing) say("    not shown: {}\n", describe(m));
  for (const std::string& note : result.notes) say("    note: {}\n", note);
  if (result.rejected()) say("{}\n", result.report);
}

// Breaks one program at every synchronisation site. Its label is the one under which harmless
// mutants are explained (proof/mutation/explained_survivors.h).
void mutate_program(const ProgramSource& source, const std::string& label, const Program& program,
                    ProveTotals& totals) {
  MutationSummary summary = run_mutants(label, program);
  say("{}: {} mutants, {} rejected, {} not complete, {} unexplained\n", label, summary.mutants,
      summary.rejected, summary.not_complete, summary.unexplained());
  totals.mutants += summary.mutants;
  totals.mutants_rejected += summary.rejected;
  totals.mutants_not_complete += summary.not_complete;
  if (source.op() != nullptr)
    totals.unexplained += summary.unexplained();  // nobody explains a file's
  for (const Survivor& s : summary.survivors) {
    totals.survivors.push_back(fmt::format("{}: {} at {}: {}", s.label, s.kind, s.site,
                                           s.reason.empty() ? "UNEXPLAINED" : s.reason));
  }
}

// One program of the source, and as a GPU runs it where that splits roles into agents.
void mutate_one(const ProgramSource& source, int world_size, ProveTotals& totals) {
  std::vector<NamedProgram> programs = source.programs(world_size);
  const NamedProgram& named = programs[programs.size() > 1 ? 1 : 0];  // a ragged shape
  const OperatorInfo* op = source.op();
  std::string label = op != nullptr ? fmt::format("{} P={}", op->name, world_size) : named.label;
  mutate_program(source, label, spread_over_workers(lower(named.program).program()), totals);
  if (op == nullptr) return;
  Program split = lower(op->program(gpu_shape(*op, world_size))).program();
  if (is_split(split)) mutate_program(source, label + " gpu", spread_over_workers(split), totals);
}

bool is_one_shape(const ProveCommand& o) {
  bool has_dtype = !o.dtype.empty() && !o.source.empty() && !o.mutants;
  return has_sizes(o.shape) || o.target == "cuda" || has_dtype;
}

// The tests' shapes, or the one that was asked for.
std::vector<NamedProgram> programs_of(const ProgramSource& source, const ProveCommand& options,
                                      int world_size) {
  OpShape shape = options.shape;
  shape.world_size = world_size;
  if (!options.dtype.empty()) shape.dtype = parse_dtype(options.dtype);
  shape.target = options.target == "cuda" ? Target::kCuda : Target::kCpu;
  bool own_shape = source.has_own_shape() && !has_sizes(options.shape);
  if (own_shape || !is_one_shape(options)) return source.programs(world_size);
  return {{fmt::format("{} {}", options.source, to_string(shape)), source.program(shape)}};
}

std::vector<ProgramSource> sources_of(const ProveCommand& options) {
  std::vector<ProgramSource> sources;
  if (!options.source.empty()) {
    if (options.all) {
      throw UserError(fmt::format("prove: '{}' and --all: one of them", options.source));
    }
    sources.emplace_back(options.source);
    return sources;
  }
  if (!options.all && !options.mutants) {
    throw UserError("prove: name an operator or a file, or give --all or --mutants");
  }
  for (const OperatorInfo& op : catalog()) sources.emplace_back(op.name);
  return sources;
}

void run_prove(const ProveCommand& options) {
  auto begin = std::chrono::steady_clock::now();
  RankRange ranks = parse_ranks(options.ranks);
  if (options.large) {
    bool which = options.all != !options.source.empty();
    if (!which || options.mutants || is_one_shape(options)) {
      throw UserError(
          "prove: --large goes with an operator or --all and without --mutants, sizes and "
          "--target");
    }
    return prove_large({.limit_s = options.limit_s,
                        .limit_mb = options.limit_mb,
                        .json = options.json,
                        .fixed_sizes = options.fixed_sizes,
                        .op = options.source,
                        .ranks = ranks});
  }
  if (options.fixed_sizes) throw UserError("prove: --fixed-sizes goes with --large");
  if (is_one_shape(options) && (options.source.empty() || options.mutants)) {
    throw UserError(
        "prove: --m, --n, --k, --size and --target are for one program, without --mutants");
  }
  ProveTotals totals;
  for (const ProgramSource& source : sources_of(options)) {
    RankRange range = ranks;
    if (!options.source.empty()) check_given(*options.command, source, ranks);
    if (source.fixed_world_size()) range.first = range.last = *source.fixed_world_size();
    for (int p = range.first; p <= range.last; ++p) {
      for (const NamedProgram& named : programs_of(source, options, p)) {
        check_target(named, options);
        prove_one(named, totals);
      }
      // What shows at many ranks shows at two or three.
      if (options.mutants && totals.rejected == 0 && p >= 2 && p <= 3)
        mutate_one(source, p, totals);
    }
  }
  std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  if (options.json) {
    nlohmann::json out = {{"programs", totals.programs},
                          {"proved", totals.proved},
                          {"proved_at_fixed_sizes", totals.fixed_sizes},
                          {"not_complete", totals.not_complete},
                          {"rejected", totals.rejected},
                          {"results", totals.results},
                          {"mutants", totals.mutants},
                          {"mutants_rejected", totals.mutants_rejected},
                          {"mutants_not_complete", totals.mutants_not_complete},
                          {"survivors", totals.survivors},
                          {"seconds", seconds.count()}};
    fmt::print("{}\n", to_line(out));
  } else {
    fmt::print("{} programs: {} proved, {} not complete, {} rejected", totals.programs,
               totals.proved, totals.not_complete, totals.rejected);
    if (options.mutants) {
      fmt::print("; {} mutants, {} rejected, {} not complete, {} survivors", totals.mutants,
                 totals.mutants_rejected, totals.mutants_not_complete, totals.survivors.size());
    }
    fmt::print(" ({:.1f} s)\n", seconds.count());
  }
  if (totals.rejected > 0) {
    throw Rejected(fmt::format("{} of {} programs", totals.rejected, totals.programs));
  }
  if (totals.unexplained > 0) {
    throw Rejected(fmt::format("{} mutants survive without an explanation", totals.unexplained));
  }
  if (totals.not_complete > 0) {
    say("stretto: not complete: {} of {} programs\n", totals.not_complete, totals.programs);
    throw CommandFailed{kExitNotComplete};
  }
}

}  // namespace

void add_prove_command(CLI::App& app) {
  auto options = std::make_shared<ProveCommand>();
  CLI::App* command =
      app.add_subcommand("prove", "Prove programs free of races and deadlocks, for every schedule");
  command->add_option("program", options->source, "operator, C++ file or IR file");
  command->add_flag("--all", options->all, "every shipped operator");
  command->add_flag(
      "--large", options->large,
      "with --all or an operator: at shapes of models, as GPUs run them, on those of 1, 2, 4 and "
      "8 ranks that are in --ranks");
  command->add_flag(
      "--fixed-sizes", options->fixed_sizes,
      "with --large: for each shape's sizes alone, of which a launch takes no others");
  command->add_option("--limit-s", options->limit_s, "with --large: CPU time per program")
      ->check(positive())
      ->capture_default_str();
  command->add_option("--limit-mb", options->limit_mb, "with --large: memory per program")
      ->check(positive())
      ->capture_default_str();
  command->add_flag("--mutants", options->mutants,
                    "also break each program at every synchronisation "
                    "site; the proof must reject the result");
  command->add_option("--ranks", options->ranks, "world sizes, N or A..B")
      ->envname("STRETTO_PROVE_RANKS")
      ->capture_default_str();
  add_size_options(command, options->shape);  // none of them: the tests' shapes
  command->add_option("--dtype", options->dtype, "element type of one program")
      ->envname("STRETTO_DTYPE")
      ->default_str("float32 of a shape that is given");
  command->add_option("--target", options->target, "whose default config to take")
      ->check(CLI::IsMember({"cpu", "cuda"}))
      ->capture_default_str();
  command->add_flag("--json", options->json,
                    "one JSON object on stdout; with --large a line for each program");
  options->command = command;
  command->callback([options] { run_prove(*options); });
}

}  // namespace stretto
