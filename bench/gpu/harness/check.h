// Small ragged cases on the GPU against the plain reference, before anything is timed.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "bench/gpu/harness/compile_ahead.h"
#include "stretto/testing/harness/op_case.h"

namespace stretto::bench {

// Cases of one program are made when their turn comes: references are slow.
struct CheckCase {
  std::string label;
  std::function<Program()> program;
  std::function<std::vector<OpCase>(std::uint64_t seed)> make;
};

std::vector<CheckCase> check_cases();
// Every operator of the catalog at the shapes that the tests cover, with its GPU config, each at
// several run-time numbers of rows.
std::vector<CheckCase> catalog_cases(int world_size);

struct CheckOptions {
  std::string only;  // part of the labels wanted; empty: all
  int one_of = 1;    // of so many that have it, one: is_drawn()
  std::uint64_t seed = 0;
  int launches = 3;
  int back_to_back = 1;  // launches between comparisons
  int rounds = 1;        // of all cases, in the same worlds until one fails
  int world_size = 1;
  bool graphs = false;  // gpu_case.h: GpuRunOptions
  bool streams = false;
  bool stalls = false;  // and stall_gpu_cases, where there are several ranks
  bool delays = false;  // kernels pause at random
  bool early = false;   // gpu_case.h: GpuRunOptions
};

// The programs of those cases that `options` ask for, as their kernels are made, each early one
// with the one before; erases the others.
std::vector<LabelledProgram> check_programs(std::vector<CheckCase>& cases,
                                            const CheckOptions& options);

// Prints a line per case, of rounds after the first one per failure; how many failed. DeviceError
// without a GPU.
int run_checks(std::vector<CheckCase> cases, const CheckOptions& options);

}  // namespace stretto::bench
