// Schedule-level program -> linear code of one rank (code.h). Runs once per instance; afterwards no
// launch allocates or looks at the program's tree.
#pragma once

#include <memory>

#include "stretto/executor/code.h"

namespace stretto {

// UserError for a program that is not at schedule level. Keeps `program` alive: the code points
// into it.
ProgramCode translate(std::shared_ptr<const Program> program, int rank);

}  // namespace stretto
