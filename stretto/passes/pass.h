// What a pass is: a free function from program to program. pipeline.h lists them in order.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "stretto/ir/program.h"

namespace stretto {

struct Pass {
  const char* name;
  std::function<Program(Program)> run;
};

// Is called after each pass, e.g. to print the program: `stretto explain OP --after PASS`.
using AfterPass = std::function<void(const Pass&, const Program&, double seconds)>;

}  // namespace stretto
