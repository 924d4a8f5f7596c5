#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>

#include "apps/commands.h"
#include "apps/gpu_build.h"
#include "apps/program_source.h"
#include "apps/shape_options.h"
#include "stretto/base/errors.h"
#include "stretto/base/say.h"
#include "stretto/compiler.h"
#include "stretto/ir/printer.h"
#include "stretto/passes/pipeline.h"
#include "stretto/proof/print_instances.h"
#include "stretto/runtime/cuda/nvrtc.h"

namespace stretto {
namespace {

struct ExplainOptions {
  std::string source, after, emit = "tile-ir", target = "cpu";
  int ranks = 2;
  OpShape shape;  // m, n, k: 0 where not given
  std::string dtype;
  const CLI::App* command = nullptr;
};

void check_pass(const std::string& wanted) {
  if (wanted.empty()) return;
  std::string names;
  for (const Pass& pass : schedule_pipeline()) {
    if (wanted == pass.name) return;
    names += fmt::format(" {}", pass.name);
  }
  throw UserError(fmt::format("--after '{}': no such pass; passes:{}", wanted, names));
}

// As the pass of that name leaves it, or the last where none is named.
Program lowered_until(Program program, const std::string& wanted) {
  Program found;
  Lowered whole = lower(std::move(program), [&](const Pass& pass, const Program& now, double s) {
    say("{}: {:.3f} ms\n", pass.name, s * 1e3);
    if (wanted == pass.name) found = now;
  });
  return wanted.empty() ? whole.program() : found;
}

void explain(const ExplainOptions& options) {
  check_pass(options.after);
  ProgramSource source(options.source);
  check_given(*options.command, source, {options.ranks, options.ranks});
  bool gpu = options.emit == "cuda" || options.emit == "ptx";
  OpShape shape{.world_size = source.fixed_world_size().value_or(options.ranks)};
  if (gpu && source.op() != nullptr) {  // the shape that shows how the operator is meant to run
    int ranks = shape.world_size;
    shape = source.op()->large;
    shape.world_size = ranks;
  }
  if (gpu || options.target == "cuda") shape.target = Target::kCuda;
  for (std::int64_t OpShape::*size : {&OpShape::m, &OpShape::n, &OpShape::k}) {
    if (options.shape.*size > 0) shape.*size = options.shape.*size;
  }
  shape.sizes = options.shape.sizes;
  if (!options.dtype.empty()) shape.dtype = parse_dtype(options.dtype);
  Program program = source.program(shape);
  if (options.emit == "tile-ir" && options.after.empty()) {
    fmt::print("{}", print(program));
    return;
  }
  Program lowered = program.level == Level::kTile
                        ? lowered_until(std::move(program), options.after)
                        : std::move(program);
  if (gpu) {
    GeneratedKernel kernel = generate_for_gpu(std::move(lowered));
    fmt::print("{}", options.emit == "cuda"
                         ? kernel.source
                         : cuda::compile_ptx(kernel.expanded, kernel.launch.kernel + ".cu"));
  } else if (options.emit == "instances") {
    fmt::print("{}", print_instances(lowered, extent_bounds(lowered)));
  } else {
    fmt::print("{}", print(lowered));
  }
}

}  // namespace

void add_explain_command(CLI::App& app) {
  auto options = std::make_shared<ExplainOptions>();
  CLI::App* command = app.add_subcommand("explain", "Print a program at any stage of its way");
  command->add_option("program", options->source, "operator, C++ file or IR file")->required();
  command->add_option("--after", options->after, "print the program as this pass leaves it");
  command->add_option("--emit", options->emit, "what to print")
      ->check(CLI::IsMember({"tile-ir", "schedule-ir", "instances", "cuda", "ptx"}))
      ->capture_default_str();
  command->add_option("--target", options->target, "whose default config to take; of code cuda's")
      ->check(CLI::IsMember({"cpu", "cuda"}))
      ->capture_default_str();
  add_ranks_option(command, options->ranks);
  add_size_options(command, options->shape);
  command->add_option("--dtype", options->dtype, "element type, PyTorch's name or short")
      ->envname("STRETTO_DTYPE");
  options->command = command;
  command->callback([options] { explain(*options); });
}

}  // namespace stretto
