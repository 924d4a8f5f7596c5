// The struct that a generated kernel takes as its parameters.
#pragma once

#include <string>

#include "stretto/codegen/launch_plan.h"
#include "stretto/ir/program.h"

namespace stretto {

// struct Params, in the order in which gpu/ fills it; `record`: with what a recorder needs.
std::string params_text(const Program& program, const LaunchPlan& launch, bool record);

}  // namespace stretto
