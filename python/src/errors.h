// Errors of stretto as exceptions of Python, of the types in stretto/errors.py.
#pragma once

#include <nanobind/nanobind.h>

#include <exception>

namespace stretto::python {

// For nanobind: sets Python's error, or throws again what is none of stretto's.
void translate(const std::exception_ptr& error, void*);
// What Python code would catch.
nanobind::object exception_of(const std::exception_ptr& error);

}  // namespace stretto::python
