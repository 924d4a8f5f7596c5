// Programs as Python sees them: those of the shipped operators, of C++ files and of texts; compiled
// (passes, proof), printed, predicted.
#pragma once

#include <nanobind/nanobind.h>

#include "stretto/ops/operator/target.h"

namespace stretto::python {

// Of GPUs with so many SMs; 0: CPU ranks.
inline Target target(int sms) { return sms > 0 ? GpuTarget{.sms = sms} : Target(Target::kCpu); }

void bind_programs(nanobind::module_& m);

}  // namespace stretto::python
