// Drops what does nothing: empty loops and conditions, and lets that nobody reads. For the passes
// that leave each agent a part of what one did.
#pragma once

#include "stretto/ir/program.h"

namespace stretto {

void prune(const Program& program, Block& block);

}  // namespace stretto
