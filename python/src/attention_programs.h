// Programs of attention whose tokens, or whose cache, are spread over the ranks.
#pragma once

#include <nanobind/nanobind.h>

namespace stretto::python {

void bind_attention(nanobind::module_& m);

}  // namespace stretto::python
