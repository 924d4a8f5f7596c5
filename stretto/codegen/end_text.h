// How the last block of a kernel ends the launch.
#pragma once

#include <string>
#include <vector>

#include "stretto/codegen/role_plan.h"

namespace stretto {

// `on_end`: what it does first, if it is `last`, where the epoch is `now`; then tickets begin anew
// and the epoch is the next. `beside_gate`: the launch ends after its gate.
std::string end_of_launch_text(const std::string& on_end, const std::vector<RolePlan>& plans,
                               bool beside_gate);

}  // namespace stretto
