// `stretto bench --device cuda`: an operator or program on the GPUs of this machine, in the config
// that the chooser picks, beside the unfused path.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "apps/program_source.h"
#include "stretto/ops/measure/gpu_time.h"
#include "stretto/runtime/world.h"

namespace stretto {

struct GpuMeasureOptions {
  OpShape shape;
  const OperatorInfo* like = nullptr;  // whose work a file's program does (like_operator.h)
  int samples = 20;
  bool vendor = true;           // cuBLASLt and NCCL may be compared with, and chosen
  bool graph = false;           // launches replayed from captured graphs
  bool measure = false;         // the chooser measures what prediction finds promising
  std::shared_ptr<World> host;  // of processes, each of which measures; none: all GPUs from here
  std::string machine;  // of the chooser; empty: as this machine was calibrated, or a built-in one
};

struct GpuMeasurement {
  std::string config;
  std::vector<double> samples_ms;  // slowest rank
  double predicted_ms = 0;
  // The unfused path, where the operator has one: what it is made of, and its time over ours,
  // sample by sample.
  std::string sequence;
  std::vector<double> sequence_ms;
  std::optional<MedianInterval> ratio;
  bool chose_sequence = false;
  bool checked = false;  // results, by the reference of the operator or of what a file is like
};

// DeviceError without enough GPUs; UserError, also where results differ from the reference; Fault.
GpuMeasurement measure_on_gpus(const ProgramSource& source, const GpuMeasureOptions& options);

}  // namespace stretto
