#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <exception>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>

#include "apps/commands.h"
#include "apps/gpu_build.h"
#include "apps/program_source.h"
#include "apps/shape_options.h"
#include "stretto/base/env.h"
#include "stretto/base/errors.h"
#include "stretto/base/json.h"
#include "stretto/base/say.h"
#include "stretto/base/threads.h"
#include "stretto/ops/catalog/catalog.h"
#include "stretto/ops/choose/candidates.h"
#include "stretto/passes/pipeline.h"
#include "stretto/runtime/cuda/nvrtc.h"

namespace stretto {
namespace {

struct CompileCommand {
  std::string source, target = "sm_90a", ranks = "1..4";
  std::string part = "1/1";
  std::string dtype;  // empty: those of the shapes, of a shape that is given bfloat16
  OpShape shape;
  bool all = false, candidates = false, json = false;
  const CLI::App* command = nullptr;
};

struct CompileTotals {
  int kernels = 0, spills = 0, warnings = 0;
  bool asked_for = true;  // all failures
  std::vector<std::string> failures;
};

// One kernel, and what there is to say about it: nothing where it is good.
struct Outcome {
  GpuBuild build;
  std::string verdict;
  bool asked_for = false;  // the shape or file asks for what no GPU has
};

Outcome compile_one(const NamedProgram& named, const CompileCommand& options) {
  Outcome outcome;
  try {
    outcome.build = build_for_gpu(named.program, options.target);
    outcome.verdict = outcome.build.complaint;
  } catch (const DeviceError&) {
    throw;  // no compiler: says nothing about the program
  } catch (const Error& e) {
    outcome.verdict = e.what();
    outcome.asked_for = dynamic_cast<const UserError*>(&e) != nullptr;
  }
  return outcome;
}

// All of them on as many threads as the machine has, reported as they finish.
CompileTotals compile_all(const std::vector<NamedProgram>& programs,
                          const CompileCommand& options) {
  CompileTotals totals{.kernels = static_cast<int>(programs.size())};
  std::mutex mutex;
  side_by_side(programs.size(), num_processors(), [&](std::size_t i) {
    Outcome outcome = compile_one(programs[i], options);
    std::lock_guard lock(mutex);
    say("{}: {} ({:.3f} s)\n", programs[i].label,
        outcome.verdict.empty() ? "good" : outcome.verdict, outcome.build.seconds);
    totals.spills += outcome.build.spills;
    totals.warnings += outcome.build.warnings;
    if (outcome.verdict.empty()) return;
    totals.asked_for &= outcome.asked_for;
    totals.failures.push_back(fmt::format("{}: {}", programs[i].label, outcome.verdict));
  });
  std::sort(totals.failures.begin(), totals.failures.end());
  return totals;
}

std::vector<ProgramSource> sources_of(const CompileCommand& options) {
  std::vector<ProgramSource> sources;
  if (!options.source.empty()) {
    if (options.all) {
      throw UserError(fmt::format("compile: '{}' and --all: one of them", options.source));
    }
    sources.emplace_back(options.source);
    if (options.candidates && sources[0].op() == nullptr) {
      throw UserError(
          fmt::format("compile: '{}' has no --candidates, being no operator", options.source));
    }
    return sources;
  }
  if (!options.all) throw UserError("compile: name an operator or a file, or give --all");
  for (const OperatorInfo& op : catalog()) sources.emplace_back(op.name);
  return sources;
}

// Every config that the chooser may take at a shape.
void add_candidates(const ProgramSource& source, const OpShape& shape,
                    std::vector<NamedProgram>& programs) {
  OpCandidates offered = candidates(source.op()->name, shape);
  for (const Candidate& c : offered.fused) {
    programs.push_back({fmt::format("{} | {}", offered.desc, c.config), c.program()});
  }
}

// What the tests cover and a large model's layer, or the one shape asked for.
std::vector<NamedProgram> programs_of(const ProgramSource& source, const CompileCommand& options,
                                      int world_size) {
  OpShape asked = options.shape;
  const bool has_dtype = !options.dtype.empty();
  asked.dtype = has_dtype ? parse_dtype(options.dtype) : DType::kBF16;
  std::vector<OpShape> shapes;
  if (has_sizes(asked) || source.op() == nullptr) {
    shapes = {asked};
  } else if (options.candidates) {
    shapes = {source.op()->large};
    if (has_dtype) shapes[0].dtype = asked.dtype;
  } else if (has_dtype && !options.all) {
    shapes = {asked};
  } else {
    shapes = source.op()->shapes(world_size);
    shapes.push_back(source.op()->large);
  }
  std::vector<NamedProgram> programs;
  for (OpShape& shape : shapes) {
    shape.world_size = world_size;
    shape.target = Target::kCuda;
    if (options.candidates) {
      add_candidates(source, shape, programs);
      continue;
    }
    std::string label = source.op() != nullptr ? to_string(shape) : fmt::format("P={}", world_size);
    programs.push_back(
        {fmt::format("{} {}", options.source.empty() ? source.op()->name : options.source, label),
         source.program(shape)});
  }
  return programs;
}

// Each n-th of them, beginning with the i-th, for "i/n".
std::vector<NamedProgram> part_of(std::vector<NamedProgram> programs, const std::string& part) {
  std::size_t which = 0, of = 0, end = 0;
  const bool is_read = std::sscanf(part.c_str(), "%zu/%zu%zn", &which, &of, &end) == 2;
  if (!is_read || end != part.size() || which < 1 || which > of) {
    throw UserError(fmt::format("--part '{}': need I/N, with I from 1 to N", part));
  }
  std::vector<NamedProgram> out;
  for (std::size_t i = which - 1; i < programs.size(); i += of) {
    out.push_back(std::move(programs[i]));
  }
  return out;
}

void report(const CompileTotals& totals, double seconds, bool json) {
  if (!json) {
    fmt::print("{} kernels: {} failed, {} spills, {} warnings ({:.1f} s)\n", totals.kernels,
               totals.failures.size(), totals.spills, totals.warnings, seconds);
    return;
  }
  nlohmann::json out = {{"kernels", totals.kernels},   {"failed", totals.failures.size()},
                        {"spills", totals.spills},     {"warnings", totals.warnings},
                        {"failures", totals.failures}, {"seconds", seconds}};
  fmt::print("{}\n", to_line(out));
}

void run_compile(const CompileCommand& options) {
  auto begin = std::chrono::steady_clock::now();
  RankRange ranks = parse_ranks(options.ranks);
  std::vector<ProgramSource> sources = sources_of(options);
  cuda::nvrtc_info();  // says at once how to get it
  env_cache_bytes();   // and what is wrong with the environment
  std::vector<NamedProgram> programs;
  for (const ProgramSource& source : sources) {
    RankRange range = ranks;
    if (!options.source.empty()) check_given(*options.command, source, ranks);
    if (source.fixed_world_size()) range.first = range.last = *source.fixed_world_size();
    for (int p = range.first; p <= range.last; ++p) {
      for (NamedProgram& named : programs_of(source, options, p)) {
        programs.push_back(std::move(named));
      }
    }
  }
  programs = part_of(std::move(programs), options.part);
  CompileTotals totals = compile_all(programs, options);
  std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  report(totals, seconds.count(), options.json);
  if (totals.failures.empty()) return;
  std::string what = fmt::format("{} of {} kernels; the first: {}", totals.failures.size(),
                                 totals.kernels, totals.failures[0]);
  if (sources[0].op() == nullptr || totals.asked_for) throw UserError(what);
  throw InternalError(what);
}

}  // namespace

void add_compile_command(CLI::App& app) {
  auto options = std::make_shared<CompileCommand>();
  CLI::App* command = app.add_subcommand(
      "compile", "Generate and compile GPU kernels, without a GPU; spills and warnings fail");
  command->add_option("program", options->source, "operator, C++ file or IR file");
  command->add_flag("--all", options->all, "every shipped operator");
  command->add_flag("--candidates", options->candidates,
                    "every config that the chooser ranks, at the large shape or the one given");
  command->add_option("--target", options->target, "GPU architecture")
      ->check(CLI::IsMember({"sm_90a"}))
      ->capture_default_str();
  command->add_option("--ranks", options->ranks, "world sizes, N or A..B")
      ->envname("STRETTO_COMPILE_RANKS")
      ->capture_default_str();
  command->add_option("--part", options->part, "I/N: each N-th kernel, beginning with the I-th")
      ->capture_default_str();
  add_size_options(command, options->shape);  // none of them: the tests' shapes
  command
      ->add_option("--dtype", options->dtype,
                   "element type; without a size that of one program, where sizes "
                   "are the operator's defaults")
      ->envname("STRETTO_DTYPE")
      ->default_str("bfloat16 of a shape that is given");
  command->add_flag("--json", options->json, "one JSON object on stdout");
  options->command = command;
  command->callback([options] { run_compile(*options); });
}

}  // namespace stretto
