// What stays on the SMs of a role that runs on copy engines: its waits (copy_engine_plan.h).
#pragma once

#include <cstdint>

#include "stretto/ir/program.h"

namespace stretto {

enum class WaitsOf : std::uint8_t {
  kGate,   // for what ranks announce in on_start
  kBells,  // for anything else
};

// The role with nothing left of its body but those waits, by one agent of one thread; an empty body
// where there are none.
Role role_waits(const Program& schedule, const Role& role, WaitsOf which);

}  // namespace stretto
