// Kernels hold indices in 32 bits, CPU ranks and the proof in 64.
#pragma once

#include "stretto/ir/program.h"

namespace stretto {

// UserError, naming the line, where an index or a part of it leaves 32 bits when each of sizes,
// ranks, tiles, loops and entries of tables is the largest or the smallest, in all combinations.
// Of an index that is largest in between it knows nothing.
void refuse_wide_indices(const Program& schedule);

}  // namespace stretto
