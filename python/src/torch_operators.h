// The operators of torch.library, whose schemas and kernels PyTorch gets through its stable ABI
// (torch_abi.h). A kernel finds its call among the plans of its group and makes it without Python
// code; calls that have none go to the operator's body in Python, which _torch_library.py gives.
#pragma once

#include <nanobind/nanobind.h>

namespace stretto::python {

void bind_torch_operators(nanobind::module_& m);

}  // namespace stretto::python
