#include "apps/traced_run.h"

#include <fmt/format.h>

#include <optional>
#include <utility>

#include "apps/chosen_program.h"
#include "apps/predicted_trace.h"
#include "stretto/base/errors.h"
#include "stretto/compiler.h"
#include "stretto/ops/choose/calibrated_machine.h"
#include "stretto/ops/measure/cpu_time.h"
#include "stretto/ops/measure/gpu_program.h"
#include "stretto/predict/prediction.h"

namespace stretto {
namespace {

constexpr std::uint64_t kTraceSeed = 1;
constexpr int kWarmups = 10;

// What was measured and, where there is a prediction, that beside it.
class TraceFile {
 public:
  TraceFile(Program program, predict::TimetableOptions plan, const predict::Machine& machine,
            const TraceOptions& options)
      : options_(options), machine_(machine.name), schedule_(lower(std::move(program))) {
    try {
      plan.eager = true;
      prediction_ =
          predict::predict(schedule_, machine, {.timetable = std::move(plan), .record = true});
    } catch (const UserError& e) {
      if (!options.machine.empty()) throw;
      why_not_ = e.what();
    }
  }

  void write(const Recorder& measured, const Recorder::Notes& notes = {}) const {
    if (prediction_) {
      write_both_traces(measured, *prediction_, machine_, notes, options_.output);
    } else {
      Recorder::write_trace(options_.output, {{&measured, ""}}, notes);
    }
  }

  // "CONFIG: 3 launches written to FILE, predicted 0.1 ms on h200x2"
  std::string summary(const std::string& config) const {
    return fmt::format(
        "{}: {} launches written to {}, {}", config, options_.samples, options_.output,
        prediction_ ? fmt::format("predicted {:.4f} ms on {}", prediction_->time_ms, machine_)
                    : "no prediction: " + why_not_);
  }

 private:
  const TraceOptions& options_;
  std::string machine_;
  Lowered schedule_;
  std::optional<predict::Prediction> prediction_;
  std::string why_not_;
};

}  // namespace

std::string trace_on_cpu(const Program& program, const std::string& config,
                         const TraceOptions& options) {
  TraceFile file(
      program, {.extents = extent_bounds(program)},
      predict::find_machine(options.machine.empty() ? builtin_machine_of(program.world_size)
                                                    : options.machine),
      options);
  time_on_cpu(program, {.samples = options.samples,
                        .recorded = [&](const Recorder& recorder) { file.write(recorder); },
                        .waiver = options.waiver});
  return file.summary(config);
}

std::string trace_on_gpus(const ProgramSource& source, OpShape shape, const TraceOptions& options) {
  GpuWorld world({.size = shape.world_size});
  predict::Machine machine = options.machine.empty()
                                 ? calibrated_machine(shape.world_size, world.target())
                                 : predict::find_machine(options.machine);
  shape.target = world.target();
  ChosenProgram chosen;
  if (source.op() == nullptr) {
    chosen = {source.program(shape), ""};
    chosen.config = fmt::format("{} P={}", chosen.program.name, world.size());
  } else {
    chosen = chosen_program(source.op()->name, shape, machine, true);
    chosen.config = fmt::format("{} {} | {}", source.op()->name, to_string(shape), chosen.config);
  }
  TraceFile file(chosen.program, {.tables = chosen.tables}, machine, options);
  RandomFill random(world, kTraceSeed, shape.dtype);
  GpuProgram program(world, chosen.program, num_launch_sets(chosen.program, world), random,
                     {.record = true, .waiver = options.waiver});
  Executable& executable = program.executable();
  RanksCall call = program.call();
  for (int i = 0; i < kWarmups; ++i) call(i % program.num_sets());
  executable.wait();
  executable.set_recording(true);
  for (int i = 0; i < options.samples; ++i) call(i % program.num_sets());
  executable.wait();
  Recorder recorder(world.size());
  std::int64_t error_ns = executable.collect(recorder);
  file.write(recorder, {{"clock_error_ns", std::to_string(error_ns)}});
  return file.summary(chosen.config) + fmt::format(", clocks within {:.2f} us, {} events dropped",
                                                   static_cast<double>(error_ns) / 1000,
                                                   recorder.num_dropped());
}

}  // namespace stretto
