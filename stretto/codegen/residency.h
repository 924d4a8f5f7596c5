// Whether a kernel's blocks must all be on the GPU at the same time, which a cooperative launch
// sees to; of a kernel that begins beside its gate, the admission ledger alone (gpu/sm_ledger.h).
#pragma once

#include "stretto/ir/program.h"

namespace stretto {

// False where no block waits for another, and where roles that wait do so for roles of their own
// rank that never wait, and have at most `most_waiting` blocks together: those leave SMs over, on
// which every block of the others runs to its end, in whatever order they come.
bool needs_all_resident(const Program& schedule, int most_waiting);

// Less than the SMs of any Hopper GPU.
inline constexpr int kMostWaitingBlocks = 64;

}  // namespace stretto
