#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <filesystem>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "apps/chosen_program.h"
#include "apps/commands.h"
#include "apps/model_options.h"
#include "apps/program_source.h"
#include "apps/serving_options.h"
#include "apps/shape_options.h"
#include "stretto/base/env.h"
#include "stretto/base/errors.h"
#include "stretto/base/json.h"
#include "stretto/base/own_files.h"
#include "stretto/base/say.h"
#include "stretto/base/threads.h"
#include "stretto/compiler.h"
#include "stretto/engine/warm.h"
#include "stretto/gpu/gpu_code.h"
#include "stretto/ops/catalog/catalog.h"
#include "stretto/ops/choose/calibrated_machine.h"
#include "stretto/runtime/cuda/nvrtc.h"

namespace stretto {
namespace {

struct WarmCommand {
  std::vector<std::string> ops;
  std::string ranks = "1..4", target = "cpu";
  OpShape shape;
  ModelOptions model;  // its dtype: of operators, too
  StepOptions steps;
  bool json = false;
};

std::vector<OpShape> shapes_of(const OperatorInfo& op, const WarmCommand& options) {
  OpShape shape = has_sizes(options.shape) ? options.shape : op.large;
  shape.dtype = options.model.dtype == "auto" ? DType::kBF16 : parse_dtype(options.model.dtype);
  RankRange ranks = parse_ranks(options.ranks);
  std::vector<OpShape> shapes;
  for (int p = ranks.first; p <= ranks.last; ++p) {
    shape.world_size = p;
    shapes.push_back(shape);
  }
  return shapes;
}

// The default, and on GPUs the config that is predicted to be the fastest. Ranking uses all
// processors.
std::vector<NamedProgram> programs_of(const OperatorInfo& op, OpShape shape, bool gpu) {
  const std::string label = fmt::format("{} {}", op.name, to_string(shape));
  if (!gpu) return {{label, op.program(shape)}};
  predict::Machine machine = calibrated_machine(shape.world_size);
  shape.target = Target(GpuTarget{.sms = machine.num_sms});
  std::vector<NamedProgram> programs = {{label, op.program(shape)}};
  try {
    ChosenProgram chosen = chosen_program(op.name, shape, machine, false);
    programs.push_back({label + " | " + chosen.config, std::move(chosen.program)});
  } catch (const UserError& error) {
    say("{}: nothing chosen: {}\n", label, error.what());
  }
  return programs;
}

// What was made, once it is.
void report(const WarmCommand& options, std::size_t programs, bool gpu, double seconds) {
  if (options.json) {
    fmt::print("{}\n", to_line(nlohmann::json{{"programs", programs},
                                              {"target", gpu ? "cuda" : "cpu"},
                                              {"seconds", seconds}}));
    return;
  }
  fmt::print("{} programs proved{} ({:.1f} s)\n", programs, gpu ? " and compiled" : "", seconds);
}

// What a server of the model would make at its start.
void warm_server(WarmCommand& options) {
  const auto begin = std::chrono::steady_clock::now();
  choose_device(options.model);
  if (options.model.dp > 1 || options.model.launcher.processes()) {
    throw UserError("warm --model: a server has one group of ranks, threads of one process");
  }
  read_step_options(options.steps);
  const bool gpu = options.model.target() == Target::kCuda;
  if (gpu) cuda::nvrtc_info();
  const ModelFiles files = open_model(options.model);
  const std::size_t programs =
      warm_model(files, engine_options(options.model, files), options.steps.serving,
                 [](const WarmedProgram& p) {
                   say("{} of {}: {} ({:.3f} s)\n", p.done, p.total, p.label, p.seconds);
                 });
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  report(options, programs, gpu, seconds.count());
}

void warm_operators(const WarmCommand& options) {
  const auto begin = std::chrono::steady_clock::now();
  const bool gpu = options.target == "cuda";
  if (gpu) cuda::nvrtc_info();  // says at once how to get it
  std::vector<NamedProgram> programs;
  for (const std::string& name : options.ops) {
    const ProgramSource source(name);
    if (source.op() == nullptr) throw UserError(fmt::format("warm: '{}' is no operator", name));
    for (const OpShape& shape : shapes_of(*source.op(), options)) {
      for (NamedProgram& named : programs_of(*source.op(), shape, gpu)) {
        programs.push_back(std::move(named));
      }
    }
  }
  std::size_t done = 0;
  std::mutex mutex;
  side_by_side(programs.size(), num_processors(), [&](std::size_t i) {
    const auto start = std::chrono::steady_clock::now();
    const Lowered lowered = lower(std::move(programs[i].program));
    prove(lowered);                         // for launches of any sizes,
    prove(lowered, {.bounds_only = true});  // and of the largest alone
    if (gpu) generate(lowered);
    std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    std::lock_guard lock(mutex);
    say("{} of {}: {} ({:.3f} s)\n", ++done, programs.size(), programs[i].label, seconds.count());
  });
  std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  report(options, programs.size(), gpu, seconds.count());
}

// Who fills a cache wants to know that there is none; others do without.
void require_cache() {
  const SealedFolder folder(env_cache_dir() / "warm");
  constexpr std::size_t kBytes = std::size_t{1} << 20;  // more than a proof or a kernel takes
  if (std::error_code error = folder.write("room", std::string(kBytes, '\0'))) {
    throw UserError(fmt::format("warm: nothing can be kept in {} (STRETTO_CACHE_DIR): {}",
                                env_cache_dir().string(), error.message()));
  }
  std::error_code ignored;  // the folder stays: another process may be writing there
  std::filesystem::remove(folder.path("room"), ignored);
}

void run_warm(WarmCommand& options) {
  if (options.ops.empty() == options.model.model.empty()) {
    throw UserError("warm: need --ops or --model, and not both");
  }
  require_cache();
  options.ops.empty() ? warm_server(options) : warm_operators(options);
}

}  // namespace

void add_warm_command(CLI::App& app) {
  auto options = std::make_shared<WarmCommand>();
  options->model.device = "auto";
  CLI::App* command = app.add_subcommand(
      "warm", "Prove and compile programs ahead of their first run, side by side, into the cache");
  command->add_option("--ops", options->ops, "operators, with commas between them")->delimiter(',');
  command
      ->add_option(
          "--target", options->target,
          "of operators, cpu, or cuda: configs are ranked and kernels compiled, too, without a GPU")
      ->check(CLI::IsMember({"cpu", "cuda"}))
      ->capture_default_str();
  command->add_option("--ranks", options->ranks, "of operators, world sizes, N or A..B")
      ->capture_default_str();
  add_size_options(command, options->shape);  // none of them: a large model's layer
  // What a variable says of the model that commands run is not said here: there may be --ops.
  add_model_options(command, options->model);
  command->get_option("--model")
      ->description(
          "Hugging Face model directory: what `serve` with the same options makes at its start")
      ->required(false)
      ->envname("");
  command->get_option("--dtype")->description(
      "auto, float32, bfloat16 or float16; auto: of operators bfloat16, else the model's");
  add_step_options(command, options->steps);
  command->add_flag("--json", options->json, "one JSON object on stdout");
  command->callback([options] { run_warm(*options); });
}

}  // namespace stretto
