#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "apps/commands.h"
#include "apps/gpu_measure.h"
#include "apps/launcher.h"
#include "apps/like_operator.h"
#include "apps/program_source.h"
#include "apps/shape_options.h"
#include "apps/traced_run.h"
#include "stretto/base/errors.h"
#include "stretto/base/json.h"
#include "stretto/base/say.h"
#include "stretto/base/statistics.h"
#include "stretto/ops/catalog/catalog.h"
#include "stretto/ops/measure/cpu_time.h"
#include "stretto/runtime/atomic_file.h"

namespace stretto {
namespace {

struct MeasureOptions {
  std::string source, dtype, output, like, waiver;
  OpShape shape;
  int samples = 20;
  bool json = false;
  std::string device = "cpu", machine;
  bool no_vendor = false, graph = false, measure = false;
  LauncherOptions launcher;
  const CLI::App* command = nullptr;
};

DType dtype_of(const MeasureOptions& options) {
  if (!options.dtype.empty()) return parse_dtype(options.dtype);
  return options.device == "cuda" ? DType::kBF16 : DType::kF32;
}

void check_given(const MeasureOptions& options, const ProgramSource& source) {
  int ranks = options.shape.world_size;
  check_given(*options.command, source, {ranks, ranks});
}

// What is measured on CPU ranks, and how it is told.
struct Measured {
  Program program;
  std::string config;
};

Measured measured(const MeasureOptions& options) {
  ProgramSource source(options.source);
  check_given(options, source);
  OpShape shape = options.shape;
  shape.dtype = dtype_of(options);
  if (source.fixed_world_size()) shape.world_size = *source.fixed_world_size();
  Measured out{source.program(shape), ""};
  out.config = out.program.name;
  if (source.op() != nullptr) {
    out.config =
        fmt::format("{} {}{}", source.op()->name, to_string(shape), rows_note(shape, out.program));
  }
  return out;
}

nlohmann::json summary_json(std::vector<double> samples) {
  return {{"median_ms", median(samples)},
          {"p10_ms", quantile(samples, 0.1)},
          {"p90_ms", quantile(samples, 0.9)},
          {"samples", std::move(samples)}};
}

void print_summary(const nlohmann::json& out) {
  fmt::print("{}: median {:.4f} ms, p10 {:.4f}, p90 {:.4f}, {} samples\n",
             out["config"].get<std::string>(), out["median_ms"].get<double>(),
             out["p10_ms"].get<double>(), out["p90_ms"].get<double>(), out["samples"].size());
}

OpShape gpu_shape(const MeasureOptions& options, const ProgramSource& source) {
  check_given(options, source);
  OpShape shape = options.shape;
  shape.dtype = dtype_of(options);
  shape.target = Target::kCuda;
  if (source.fixed_world_size()) shape.world_size = *source.fixed_world_size();
  return shape;
}

// The operator that a file is said to do the work of; null where none is.
const OperatorInfo* like_operator(const MeasureOptions& options, const ProgramSource& source) {
  if (options.like.empty()) return nullptr;
  if (source.op() != nullptr) {
    throw UserError(fmt::format("--like: '{}' is an operator itself", options.source));
  }
  const OperatorInfo* op = find_operator(options.like);
  if (op == nullptr) {
    throw UserError(fmt::format("--like '{}': no such operator", options.like));
  }
  return op;
}

// The operator by whose reference results are checked; null: of a file that is like none.
const OperatorInfo* reference_of(const MeasureOptions& options, const ProgramSource& source) {
  const OperatorInfo* like = like_operator(options, source);
  return like != nullptr ? like : source.op();
}

void print_checked(const OperatorInfo* reference, bool checked) {
  if (reference == nullptr) return;
  fmt::print("results {} by the reference of {}\n", checked ? "checked" : "not checked",
             reference->name);
}

// Other ranks may be compiling.
constexpr std::chrono::milliseconds kHostTimeout{60'000};

void bench_on_gpus(const MeasureOptions& options) {
  ProgramSource source(options.source);
  OpShape shape = gpu_shape(options, source);
  const OperatorInfo* reference = reference_of(options, source);
  if (ran_as_processes(options.launcher, shape.world_size, Target::kCuda)) return;
  std::shared_ptr<World> host;
  if (options.launcher.processes()) {
    host = make_world(options.launcher, shape.world_size,
                      {.timeout = std::max(env_timeout(), kHostTimeout)});
  }
  GpuMeasurement m = measure_on_gpus(source, {.shape = shape,
                                              .like = like_operator(options, source),
                                              .samples = options.samples,
                                              .vendor = !options.no_vendor,
                                              .graph = options.graph,
                                              .measure = options.measure,
                                              .host = host,
                                              .machine = options.machine});
  if (host != nullptr && host->local_rank().index() != 0) return;
  nlohmann::json out = summary_json(m.samples_ms);
  out["config"] = m.config;
  if (m.predicted_ms > 0) out["predicted_ms"] = m.predicted_ms;
  if (reference != nullptr) out["checked"] = m.checked;
  if (!m.sequence.empty()) {
    out["sequence"] = summary_json(m.sequence_ms);
    out["sequence"]["config"] = m.sequence;
    out["chose_sequence"] = m.chose_sequence;
  }
  if (m.ratio) {
    out["sequence_over_ours"] = {
        {"median", m.ratio->median}, {"low", m.ratio->low}, {"high", m.ratio->high}};
  }
  if (options.json) return fmt::print("{}\n", to_line(out));
  print_checked(reference, m.checked);
  print_summary(out);
  if (m.sequence.empty()) return;
  print_summary(out["sequence"]);
  if (m.ratio) {
    fmt::print("sequence / ours {:.3f} [{:.3f}, {:.3f}]\n", m.ratio->median, m.ratio->low,
               m.ratio->high);
  } else {
    fmt::print("the sequence was chosen\n");
  }
}

// What only GPUs do, asked for on CPU ranks.
void refuse_gpu_options(const MeasureOptions& options) {
  const std::pair<const char*, bool> given[] = {{"--no-vendor", options.no_vendor},
                                                {"--graph", options.graph},
                                                {"--measure", options.measure},
                                                {"--machine", !options.machine.empty()}};
  for (auto [name, is_given] : given) {
    if (is_given) throw UserError(fmt::format("bench: {} is for --device cuda", name));
  }
}

void bench(const MeasureOptions& options) {
  if (options.device == "cuda") return bench_on_gpus(options);
  refuse_gpu_options(options);
  Measured c = measured(options);
  int ranks = c.program.world_size;
  ProgramSource source(options.source);
  const OperatorInfo* reference = reference_of(options, source);
  OpShape shape = options.shape;
  shape.dtype = dtype_of(options);
  if (reference != nullptr) check_like(*reference, shape, c.program);
  if (ran_as_processes(options.launcher, ranks, Target::kCpu)) return;
  std::shared_ptr<World> world = make_world(options.launcher, ranks);
  bool checked = reference != nullptr && checked_on_cpu(*reference, shape, c.program, world);
  std::vector<double> samples =
      time_on_cpu(c.program, {.samples = options.samples, .world = world});
  if (world->local_ranks().front() != 0) return;
  nlohmann::json out = summary_json(std::move(samples));
  out["config"] = c.config;
  if (reference != nullptr) out["checked"] = checked;
  if (options.json) return fmt::print("{}\n", to_line(out));
  print_checked(reference, checked);
  print_summary(out);
}

void trace(const MeasureOptions& options) {
  check_writable(options.output);
  TraceOptions tracing{.samples = options.samples,
                       .machine = options.machine,
                       .output = options.output,
                       .waiver = options.waiver};
  std::string summary;
  if (options.device == "cuda") {
    ProgramSource source(options.source);
    summary = trace_on_gpus(source, gpu_shape(options, source), tracing);
  } else {
    Measured c = measured(options);
    summary = trace_on_cpu(c.program, c.config, tracing);
  }
  say("{}\n", summary);
}

void add_shape_options(CLI::App* command, MeasureOptions& options) {
  options.command = command;
  command->add_option("program", options.source, "operator, C++ file or IR file")->required();
  add_size_options(command, options.shape);
  command
      ->add_option("--dtype", options.dtype,
                   "element type, PyTorch's name or short; default: float32, on GPUs bfloat16")
      ->envname("STRETTO_DTYPE");
  command->add_option("--device", options.device, "where")
      ->check(CLI::IsMember({"cpu", "cuda"}))
      ->envname("STRETTO_DEVICE")
      ->capture_default_str();
  options.shape.world_size = 2;
  add_ranks_option(command, options.shape.world_size);
}

}  // namespace

void add_bench_command(CLI::App& app) {
  auto options = std::make_shared<MeasureOptions>();
  CLI::App* command =
      app.add_subcommand("bench", "Time an operator or program on CPU ranks or GPUs");
  add_shape_options(command, *options);
  add_launcher_option(command, options->launcher);
  command->add_option("--like", options->like,
                      "the operator that a file's program does the work of: its reference checks "
                      "the results of small shapes; cuda: its unfused path is timed beside");
  command->add_flag("--no-vendor", options->no_vendor,
                    "cuda: compare with and choose among programs of ours only");
  command->add_flag("--graph", options->graph, "cuda: launches replayed from captured graphs");
  command->add_flag("--measure", options->measure,
                    "cuda: measure what prediction finds promising, and keep the best");
  command->add_option("--machine", options->machine,
                      "cuda: what choices are predicted on; default: this one, as calibrated");
  command->add_option("--samples", options->samples, "timed launches")
      ->check(CLI::Range(1, 100000))
      ->envname("STRETTO_SAMPLES")
      ->capture_default_str();
  command->add_flag("--json", options->json, "one JSON object on stdout");
  command->callback([options] { bench(*options); });
}

void add_trace_command(CLI::App& app) {
  auto options = std::make_shared<MeasureOptions>();
  options->samples = 3;
  CLI::App* command = app.add_subcommand(
      "trace", "Record a timeline that opens in Perfetto, with the predicted one beside it");
  add_shape_options(command, *options);
  command->add_option("-o,--output", options->output, "file to write")->required();
  command->add_option("--machine", options->machine,
                      "of the prediction; default: h200x<ranks>, on GPUs as calibrated");
  command->add_option("--samples", options->samples, "recorded launches")
      ->check(CLI::Range(1, 1000))
      ->envname("STRETTO_SAMPLES")
      ->capture_default_str();
  command
      ->add_option("--waive-proof", options->waiver,
                   "why the program runs where its proof is not complete, in words; one that is "
                   "wrong does not")
      ->type_name("REASON")
      ->check([](const std::string& why) { return why.empty() ? "say why" : ""; });
  command->callback([options] { trace(*options); });
}

}  // namespace stretto
