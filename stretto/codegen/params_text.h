// A generated kernel's head: the struct of its parameters, and what it makes of them.
#pragma once

#include <string>

#include "stretto/codegen/launch_plan.h"
#include "stretto/ir/program.h"

namespace stretto {

// struct Params, in the order in which gpu/ fills it; `record`: with what a recorder needs.
std::string params_text(const Program& program, const LaunchPlan& launch, bool record);
// Up to the first statement.
std::string kernel_head_text(const std::string& name, int threads);
// The program's sizes and scalars as variables of a kernel.
std::string run_time_values_text(const Program& program);

}  // namespace stretto
