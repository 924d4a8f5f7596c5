// Rows past a load's run-time end that nobody ever sees: each row of what is computed comes of the
// same row of what was loaded, and is stored up to the same end, be it the store's or its tensor's.
// Such rows need not be zero, which in a slot that TMA has filled costs the reader's threads a
// barrier every step.
#pragma once

#include <set>

#include "stretto/ir/program.h"

namespace stretto {

// Loads limited to some rows, of an agent at tile level, of which that shows.
std::set<const Op*> loads_of_unseen_rows(const Program& program, const Agent& agent);

}  // namespace stretto
