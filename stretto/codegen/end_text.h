// Both ends of a launch, where all of its blocks meet.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "stretto/codegen/role_plan.h"

namespace stretto {

// The first block lets the others go, once it has done what on_start does. `site`: of the wait;
// `aborted`: as in codegen/abort_text.h.
std::string blocks_await_start_text(std::size_t site, const std::string& aborted);

// `on_end`: what it does first, if it is `last`, where the epoch is `now`; then tickets begin anew
// and the epoch is the next. `beside_gate`: the launch ends after its gate.
std::string end_of_launch_text(const std::string& on_end, const std::vector<RolePlan>& plans,
                               bool beside_gate);

}  // namespace stretto
