#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "apps/commands.h"
#include "apps/program_source.h"
#include "stretto/base/errors.h"
#include "stretto/ops/harness/time_case.h"
#include "stretto/runtime/atomic_file.h"

namespace stretto {
namespace {

struct MeasureOptions {
  std::string source, dtype = "float32", output;
  OpShape shape;
  int samples = 20;
  bool json = false;
};

OpCase make_case(const MeasureOptions& options) {
  ProgramSource source(options.source);
  OpShape shape = options.shape;
  shape.dtype = parse_dtype(options.dtype);
  if (source.fixed_world_size()) shape.world_size = *source.fixed_world_size();
  OpCase c = random_case(source.program(shape), 1);
  if (source.op() != nullptr) c.config = fmt::format("{} {}", source.op()->name, to_string(shape));
  return c;
}

double percentile(const std::vector<double>& sorted, double p) {
  double position = p * static_cast<double>(sorted.size() - 1);
  auto below = static_cast<std::size_t>(position);
  std::size_t above = std::min(below + 1, sorted.size() - 1);
  return sorted[below] + (position - static_cast<double>(below)) * (sorted[above] - sorted[below]);
}

void bench(const MeasureOptions& options) {
  OpCase c = make_case(options);
  std::vector<double> samples = time_case(c, {.samples = options.samples});
  std::vector<double> sorted = samples;
  std::sort(sorted.begin(), sorted.end());
  double median = percentile(sorted, 0.5), p10 = percentile(sorted, 0.1),
         p90 = percentile(sorted, 0.9);
  if (options.json) {
    nlohmann::json out = {{"median_ms", median},
                          {"p10_ms", p10},
                          {"p90_ms", p90},
                          {"samples", samples},
                          {"config", c.config}};
    fmt::print("{}\n", out.dump());
    return;
  }
  fmt::print("{}: median {:.4f} ms, p10 {:.4f}, p90 {:.4f}, {} samples\n", c.config, median, p10,
             p90, samples.size());
}

void trace(const MeasureOptions& options) {
  check_writable(options.output);
  OpCase c = make_case(options);
  time_case(c, {.samples = options.samples, .trace = options.output});
  fmt::print(stderr, "{}: {} launches written to {}\n", c.config, options.samples, options.output);
}

void add_shape_options(CLI::App* command, MeasureOptions& options) {
  command->add_option("program", options.source, "operator, C++ file or IR file")->required();
  command->add_option("--m", options.shape.m, "global rows; 0: the operator's default")
      ->check(CLI::Range(std::int64_t{0}, std::int64_t{1} << 24));
  command->add_option("--n", options.shape.n, "global columns; 0: the operator's default")
      ->check(CLI::Range(std::int64_t{0}, std::int64_t{1} << 24));
  command->add_option("--k", options.shape.k, "global inner size; 0: the operator's default")
      ->check(CLI::Range(std::int64_t{0}, std::int64_t{1} << 24));
  command->add_option("--dtype", options.dtype, "element type, PyTorch's name or short")
      ->envname("STRETTO_DTYPE");
  options.shape.world_size = 2;
  command->add_option("--ranks", options.shape.world_size, "world size")
      ->check(CLI::Range(1, 64))
      ->envname("STRETTO_RANKS")
      ->capture_default_str();
}

}  // namespace

void add_bench_command(CLI::App& app) {
  auto options = std::make_shared<MeasureOptions>();
  CLI::App* command = app.add_subcommand("bench", "Time an operator or program on CPU ranks");
  add_shape_options(command, *options);
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
  CLI::App* command = app.add_subcommand("trace", "Record a timeline that opens in Perfetto");
  add_shape_options(command, *options);
  command->add_option("-o,--output", options->output, "file to write")->required();
  command->add_option("--samples", options->samples, "recorded launches")
      ->check(CLI::Range(1, 1000))
      ->envname("STRETTO_SAMPLES")
      ->capture_default_str();
  command->callback([options] { trace(*options); });
}

}  // namespace stretto
