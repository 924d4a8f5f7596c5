// Replacing variables in operations.
#pragma once

#include <vector>

#include "stretto/ir/program.h"

namespace stretto {

// replacement[var_idx] in place of each variable that has one, in every index expression of a
// block.
void substitute_vars(Block& block, const std::vector<Expr>& replacement);

}  // namespace stretto
