// Loops that have nothing left to do once their condition fails: over the most rows that there may
// be, of which a table says how many there are. Their generated code ends there. Up to a bound
// that tables do not change, the proof sees every table's slots at once, and a GPU would go through
// the rest step by step.
#pragma once

#include "stretto/ir/program.h"

namespace stretto {

// Whether the loop's body is named intermediates and one condition without an alternative, which
// stays false once it is false, as its expressions show.
bool ends_with_condition(const Op& loop);

}  // namespace stretto
