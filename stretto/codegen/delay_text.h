// What kernels have that pause before waits and notifies: AgentWriter::delay_text writes the pauses
// themselves.
#pragma once

#include <string>

#include "stretto/codegen/kernel.h"

namespace stretto {

// Declares kDelays.
std::string delays_text(const KernelDelays& delays);

}  // namespace stretto
