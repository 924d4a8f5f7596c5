// The barriers of a role's pipes and its ring of tickets, as its blocks set them up before its
// agents part.
#pragma once

#include <string>

#include "stretto/codegen/role_plan.h"

namespace stretto {

// Empty for a role without either. Ends at a barrier of the block, or of the cluster.
std::string barrier_setup_text(const Role& role, const RolePlan& plan);

}  // namespace stretto
