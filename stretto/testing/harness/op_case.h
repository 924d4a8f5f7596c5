// A launch of a program that can be checked: random inputs with the outputs that a plain fp64
// reference computes from them.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "stretto/base/dtype.h"
#include "stretto/ir/program.h"
#include "stretto/ops/measure/values.h"

namespace stretto {

// An expected value that is not compared.
inline constexpr double kUnchecked = std::numeric_limits<double>::quiet_NaN();

struct OpCase {
  Program program;                    // tile level
  std::vector<std::int64_t> extents;  // run-time sizes of the launch
  std::string config;                 // desc and config, printable
  // [rank][tensor]: what the caller passes for inputs and for state (values already representable
  // in the dtype, so that the reference sees what the program sees); empty for outputs and buffers.
  std::vector<std::vector<Values>> inputs;
  // [rank][tensor]: expected outputs and state after one launch; empty for inputs and buffers. NaN
  // entries are not compared (elements outside the run-time shape).
  std::vector<std::vector<Values>> expected;
  // Outputs and state whose expected values are what a launch leaves to the bit, since it copies
  // them. So are integers, and what a launch leaves of state as it was.
  std::vector<std::string> exact = {};
  // Outputs and state of which nobody is promised anything; of every other one something has to be
  // compared (case_data.h: check_expected).
  std::vector<std::string> unchecked = {};
  // |got - expected| <= tolerance * (|expected| + scale), where scale is the magnitude of the terms
  // summed.
  double tolerance = 0;  // 0: bitwise
  double scale = 1;
  // Where rows are of very different magnitudes, in place of `scale`: by the tensor's name,
  // [rank][element].
  std::map<std::string, std::vector<Values>> scales = {};
  double flops = 0;       // of one launch, all ranks; 0 where not meaningful
  double comm_bytes = 0;  // that one rank receives from others in one launch
};

// A case without a reference: random inputs, tables of what their contracts allow, extents at their
// bounds.
OpCase random_case(const Program& program, std::uint64_t seed);
// Default tolerance of a sum of `terms` products in fp32, for kF64 in double, with the result
// rounded to `dtype`.
double sum_tolerance(DType dtype, std::int64_t terms);
// [world][tensors] of empty vectors.
std::vector<std::vector<Values>> no_values(const Program& program);

}  // namespace stretto
