// What the threads of a role cannot do, whatever its schedule.
#pragma once

#include "stretto/codegen/role_plan.h"

namespace stretto {

// UserError naming the line: values of which a thread would have too many elements; what crosses
// rows that the blocks of a cluster share out. `plan`: with its agents.
void refuse_beyond_threads(const Role& role, const RolePlan& plan);

}  // namespace stretto
