// Roles that bring what a later launch reads into L2. Nothing that a launch computes depends on
// them, and constants stand in memory already: such a role begins before the launch that the stream
// holds before this one has ended, while that leaves memory idle.
#pragma once

#include <string>
#include <vector>

#include "stretto/codegen/agent_text.h"

namespace stretto {

// Whether the role does nothing but prefetch inputs that are `constant`, by tensor, and knows which
// rows without a look at memory or at the launch's sizes.
bool prefetches_constants(const Program& program, const Role& role,
                          const std::vector<bool>& constant);

// Such a role on the blocks of which `condition` holds, from `first_block` on.
std::string at_once_text(KernelContext& kernel, const Role& role, int role_idx,
                         const RolePlan& plan, const std::string& condition, int first_block);

}  // namespace stretto
