// The config of an operator that is predicted to be the fastest, as a program.
#pragma once

#include <string>

#include "stretto/ops/operator/operator.h"
#include "stretto/predict/machine.h"

namespace stretto {

struct ChosenProgram {
  Program program;
  std::string config;
  predict::LaunchTables tables;  // that it is predicted for
  // The operator's steps in sequence, as programs of ours: what they are, and their predicted time.
  // Empty where it is a single step.
  std::string sequence;
  double sequence_ms = 0;
};

// Of the fused candidates, also where the sequence is predicted to be faster; `eager`: launched one
// by one, not from a graph. UserError where none runs on the machine.
ChosenProgram chosen_program(const std::string& op, const OpShape& shape,
                             const predict::Machine& machine, bool eager);

}  // namespace stretto
