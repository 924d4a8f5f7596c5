// Measures the GPUs of a world and describes them in the form that prediction reads: rates and
// latencies from micro programs, copy engines by copies of the driver, and what has no program of
// its own (costs per tile and step, bursts, contention between products and links) fitted to a list
// of operators. None of them is among the points that predictions are judged by
// (bench/gpu/prediction/points.cc).
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "stretto/base/json.h"
#include "stretto/gpu/gpu_world.h"
#include "stretto/ir/program.h"
#include "stretto/predict/machine.h"

namespace stretto {

struct TrainingRun {
  std::string label;
  Program program;  // tile level
  double measured_ms = 0;
};
// What the rest is fitted to. Needs no GPU.
std::vector<TrainingRun> training_runs(int world_size);

struct CalibrateGpusOptions {
  std::string name;        // of the machine
  predict::Machine start;  // what is not measured stays
  std::uint64_t seed = 0;
  int rounds = 8;                                    // of the fit
  std::function<void(const std::string&)> progress;  // a line at a time
};

struct GpuCalibration {
  predict::Machine machine;
  Json figures;          // as measured, in the form of a machine file
  Json training;         // label, measured_ms, predicted_ms before and after the fit
  double error = 0;      // mean |predicted / measured - 1| of the training runs
  Json to_json() const;  // a machine file that also says where it comes from
};

// Takes a minute or two and keeps the GPUs busy. DeviceError, Fault; a program that does not run is
// left out with a word to options.progress.
GpuCalibration calibrate_gpus(GpuWorld& world, const CalibrateGpusOptions& options);

// The fit alone, from measured runs.
GpuCalibration fit_runs(const predict::Machine& start, const std::vector<TrainingRun>& runs,
                        int rounds);

}  // namespace stretto
