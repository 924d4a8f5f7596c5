// For the tests of the language: a program goes through the passes and runs on ranks, with tensors
// by name. Nothing here is part of the library.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "stretto/ir/program.h"

namespace stretto::rank_runs {

using Doubles = std::vector<double>;
using Tensors = std::map<std::string, Doubles>;

struct Options {
  int launches = 2;
  std::vector<std::int64_t> extents;  // absent: the bounds
};

// Inputs and initial state of a rank in; its outputs and state after the last launch out, elements
// that nobody wrote as NaN.
using Inputs = std::function<Tensors(int rank)>;
std::vector<Tensors> run(const Program& program, const Inputs& inputs, const Options& options = {});

// Empty where the proof accepts the program, else its report.
std::string refusal(const Program& program);

}  // namespace stretto::rank_runs
