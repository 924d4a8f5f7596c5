// Programs as Python sees them: those of the shipped operators, of C++ files and of texts; compiled
// (passes, proof), printed, predicted.
#pragma once

#include <nanobind/nanobind.h>

#include "stretto/ops/operator/target.h"

namespace stretto::python {

inline Target target(bool gpu) { return gpu ? Target::kCuda : Target::kCpu; }

void bind_programs(nanobind::module_& m);

}  // namespace stretto::python
