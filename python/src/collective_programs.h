// Programs of collectives, alone and with what follows them.
#pragma once

#include <nanobind/nanobind.h>

namespace stretto::python {

void bind_collectives(nanobind::module_& m);

}  // namespace stretto::python
