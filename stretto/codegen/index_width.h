// Kernels hold indices in 32 bits, CPU ranks and the proof in 64.
#pragma once

#include "stretto/ir/program.h"

namespace stretto {

// UserError, naming the line, where an index leaves 32 bits when sizes, tiles, loops and entries of
// tables are the largest and the rank the last. Of an index that is largest elsewhere it knows
// nothing.
void refuse_wide_indices(const Program& schedule);

}  // namespace stretto
