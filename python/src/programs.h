// Programs as Python sees them: those of the shipped operators, of C++ files and of texts; compiled
// (passes, proof), printed, predicted.
#pragma once

#include <nanobind/nanobind.h>

namespace stretto::python {

void bind_programs(nanobind::module_& m);

}  // namespace stretto::python
