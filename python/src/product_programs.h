// Programs of products with collectives, as they are chosen (chosen.h).
#pragma once

#include <nanobind/nanobind.h>

namespace stretto::python {

void bind_products(nanobind::module_& m);

}  // namespace stretto::python
