// Programs of the operators of mixtures of experts, by the sizes that Python knows them by.
#pragma once

#include <nanobind/nanobind.h>

namespace stretto::python {

void bind_experts(nanobind::module_& m);

}  // namespace stretto::python
