#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <utility>

#include "apps/chosen_program.h"
#include "apps/commands.h"
#include "apps/predict_model.h"
#include "apps/predicted_trace.h"
#include "apps/program_source.h"
#include "apps/shape_options.h"
#include "stretto/base/errors.h"
#include "stretto/base/json.h"
#include "stretto/compiler.h"
#include "stretto/ir/op_info.h"
#include "stretto/predict/prediction.h"
#include "stretto/runtime/atomic_file.h"

namespace stretto {
namespace {

struct PredictCommand {
  std::string source, machine = "h200x4", dtype = "bfloat16", target = "cuda", output;
  std::vector<std::string> extents;
  OpShape shape;
  PredictModelOptions model;
  bool eager = false, json = false, default_config = false;
  const CLI::App* command = nullptr;
};

// What is predicted.
struct Predicted {
  Lowered program;
  std::string config;
  predict::LaunchTables tables;
  std::string sequence;  // the operator's steps one after the other, and their time; empty: none
  double sequence_ms = 0;
};

Predicted schedule_of(const PredictCommand& options, const predict::Machine& machine) {
  ProgramSource source(options.source);
  OpShape shape = options.shape;
  check_given(*options.command, source, {shape.world_size, shape.world_size});
  shape.dtype = parse_dtype(options.dtype);
  shape.target = options.target == "cuda" ? Target::kCuda : Target::kCpu;
  if (source.fixed_world_size()) shape.world_size = *source.fixed_world_size();
  Program program;
  std::string config = fmt::format("{} P={}", options.source, shape.world_size), sequence;
  predict::LaunchTables tables;
  double sequence_ms = 0;
  if (source.op() == nullptr) {
    program = source.program(shape);
  } else {
    config = fmt::format("{} {}", source.op()->name, to_string(shape));
    if (options.extents.empty()) config += rows_note(shape, source.program(shape));
    if (options.default_config || shape.target == Target::kCpu) {
      program = source.program(shape);
      if (source.op()->tables) tables = source.op()->tables(shape);
    } else {
      ChosenProgram chosen = chosen_program(source.op()->name, shape, machine, options.eager);
      program = std::move(chosen.program);
      tables = std::move(chosen.tables);
      config += " | " + chosen.config;
      sequence = std::move(chosen.sequence);
      sequence_ms = chosen.sequence_ms;
    }
  }
  Lowered lowered = lower(std::move(program));
  for (const Role& role : lowered.program().roles) {
    config += fmt::format(", {} on {} {}", role.name, role.resource.num_workers,
                          name(role.resource.kind));
  }
  return {std::move(lowered), std::move(config), std::move(tables), std::move(sequence),
          sequence_ms};
}

// "m=128", "alpha=0.5": a number as the variable takes it; none where it is no number.
std::optional<std::int64_t> value_of(const Var& var, std::string_view text) {
  const char* end = text.data() + text.size();
  if (var.is_float) {
    float value = 0;
    auto [stop, error] = std::from_chars(text.data(), end, value);
    if (error == std::errc() && stop == end) return scalar_of_float(value);
  } else {
    std::int64_t value = 0;
    auto [stop, error] = std::from_chars(text.data(), end, value);
    if (error == std::errc() && stop == end) return value;
  }
  return {};
}

// The values of a launch, where they are not to be the largest.
std::vector<std::int64_t> extents_of(const Program& program, const PredictCommand& options) {
  std::vector<std::int64_t> values = predict::default_extents(program);
  for (const std::string& text : options.extents) {
    std::size_t equals = text.find('=');
    if (equals == std::string::npos) {
      throw UserError(fmt::format("--extent '{}': need NAME=VALUE", text));
    }
    std::size_t i = 0;
    bool found = false;
    for (const Var& var : program.vars) {
      if (var.kind != VarKind::kExtent && var.kind != VarKind::kScalar) continue;
      if (var.name == text.substr(0, equals)) {
        std::optional<std::int64_t> value =
            value_of(var, std::string_view(text).substr(equals + 1));
        if (!value) throw UserError(fmt::format("--extent '{}': need NAME=VALUE", text));
        values[i] = *value;
        found = true;
      }
      ++i;
    }
    if (!found) throw UserError(fmt::format("--extent '{}': the program has no such extent", text));
  }
  return values;
}

nlohmann::json to_json(const predict::Prediction& p, const predict::Machine& machine,
                       const Predicted& predicted) {
  nlohmann::json roles = nlohmann::json::array();
  for (const predict::RoleSummary& r : p.roles) {
    roles.push_back({{"name", r.name},
                     {"workers", r.num_workers},
                     {"busy_ms", r.busy_ms},
                     {"wait_ms", r.wait_ms}});
  }
  nlohmann::json out = {{"time_ms", p.time_ms},
                        {"exposed_comm_ms", p.exposed_comm_ms},
                        {"bound_by", p.bound_by},
                        {"config", predicted.config},
                        {"machine", machine.name},
                        {"floors_ms",
                         {{"tensor", p.floors.tensor_ms},
                          {"hbm", p.floors.hbm_ms},
                          {"l2", p.floors.l2_ms},
                          {"nvlink", p.floors.link_ms},
                          {"copy_engine", p.floors.copy_ms}}},
                        {"roles", roles}};
  if (!predicted.sequence.empty()) out["sequence_ms"] = predicted.sequence_ms;
  return out;
}

void run_predict(const PredictCommand& options) {
  if (!options.model.model.empty()) {
    bool given = options.command->get_option("--dtype")->count() > 0;
    return predict_model(options.model, given ? options.dtype : "auto",
                         predict::find_machine(options.machine), options.json);
  }
  if (options.source.empty()) throw UserError("predict: need a program, or a model by --model");
  if (!options.output.empty()) check_writable(options.output);
  predict::Machine machine = predict::find_machine(options.machine);
  Predicted predicted = schedule_of(options, machine);
  const Lowered& lowered = predicted.program;
  predict::Prediction p =
      predict::predict(lowered, machine,
                       {.timetable = {.extents = extents_of(lowered.program(), options),
                                 .eager = options.eager,
                                 .tables = predicted.tables},
                        .record = !options.json || !options.output.empty()});
  if (!options.output.empty()) write_predicted_trace(p, options.output);
  if (options.json) {
    fmt::print("{}\n", to_line(to_json(p, machine, predicted)));
    return;
  }
  fmt::print("{} on {}\n{:.4f} ms, {:.4f} ms of it exposed communication, bound by {}\n",
             predicted.config, machine.name, p.time_ms, p.exposed_comm_ms, p.bound_by);
  if (!predicted.sequence.empty()) {
    fmt::print("{}: {:.4f} ms\n", predicted.sequence, predicted.sequence_ms);
  }
  fmt::print("floors: tensor {:.4f} ms, hbm {:.4f}, l2 {:.4f}, nvlink {:.4f}, copy engine {:.4f}\n",
             p.floors.tensor_ms, p.floors.hbm_ms, p.floors.l2_ms, p.floors.link_ms,
             p.floors.copy_ms);
  fmt::print("{}", predict::lane_picture(p));
}

}  // namespace

void add_predict_command(CLI::App& app) {
  auto options = std::make_shared<PredictCommand>();
  CLI::App* command = app.add_subcommand(
      "predict",
      "Time and timeline of a program, or time of a model's step, on GPUs, without a GPU");
  command->add_option("program", options->source, "operator, C++ file or IR file");
  command->add_option("--machine", options->machine, "built-in machine or JSON file")
      ->envname("STRETTO_MACHINE")
      ->capture_default_str();
  add_size_options(command, options->shape);
  command->add_option("--dtype", options->dtype, "element type, PyTorch's name or short")
      ->envname("STRETTO_DTYPE")
      ->capture_default_str();
  options->shape.world_size = 1;
  add_ranks_option(command, options->shape.world_size);
  command->add_option("--extent", options->extents,
                      "NAME=VALUE of a run-time size or scalar; else sizes are at their bounds and "
                      "scalars 0");
  command->add_option("--target", options->target, "whose default config to take")
      ->check(CLI::IsMember({"cuda", "cpu"}))
      ->capture_default_str();
  command->add_flag("--default-config", options->default_config,
                    "the operator's default config instead of the one predicted to be the fastest");
  command->add_flag("--eager", options->eager, "launched one by one, not from a graph");
  command->add_flag("--json", options->json, "one JSON object on stdout");
  command->add_option("-o,--output", options->output,
                      "write the timeline, which opens in Perfetto");
  add_predict_model_options(command, options->model);
  options->command = command;
  command->callback([options] { run_predict(*options); });
}

}  // namespace stretto
