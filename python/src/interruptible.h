// For calls that may wait for other ranks, without a lock that other Python threads take: other
// threads run meanwhile, and signals such as Ctrl-C are handled, whose exception ends the wait.
#pragma once

#include <nanobind/nanobind.h>

#include "stretto/base/interrupts.h"

namespace stretto::python {

class Interruptible {
 public:
  Interruptible() : interrupts_(handle_signals) {}

 private:
  // Python handles them on its main thread alone, elsewhere there are none.
  static void handle_signals() {
    nanobind::gil_scoped_acquire locked;
    if (PyErr_CheckSignals() != 0) nanobind::raise_python_error();
  }

  nanobind::gil_scoped_release unlocked_;
  Interrupts interrupts_;
};

}  // namespace stretto::python
