// `stretto trace`: launches recorded on CPU ranks or GPUs, and what was predicted of them, in one
// file.
#pragma once

#include <string>

#include "apps/program_source.h"

namespace stretto {

struct TraceOptions {
  int samples = 3;
  std::string
      machine;  // of the prediction; empty: GPUs as this machine was calibrated, else built in
  std::string output;
  std::string waiver = {};  // why it runs where its proof is not complete: the user's words
};

// One line about the run, for people. Errors of prove(), Fault; UserError where the file cannot
// be written or the named machine does not fit the program; with no machine named a program without
// a prediction is written without one, and the line says why.
std::string trace_on_cpu(const Program& program, const std::string& config,
                         const TraceOptions& options);
// In the config that is predicted to be the fastest. DeviceError without enough GPUs.
std::string trace_on_gpus(const ProgramSource& source, OpShape shape, const TraceOptions& options);

}  // namespace stretto
