// The config of an operator that is predicted to be the fastest, as a program.
#pragma once

#include <string>

#include "stretto/ops/harness/op_case.h"
#include "stretto/predict/machine.h"

namespace stretto {

struct ChosenProgram {
  Program program;
  std::string config;
};

// Of the fused candidates; `eager`: launched one by one, not from a graph. UserError where none
// runs on the machine.
ChosenProgram chosen_program(const std::string& op, const OpShape& shape,
                             const predict::Machine& machine, bool eager);

}  // namespace stretto
