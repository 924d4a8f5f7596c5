// Operations on registers alone. Results that are 16- or 8-bit floats are rounded when written.
#pragma once

#include <cstdint>
#include <span>

#include "stretto/executor/code.h"
#include "stretto/executor/worker_state.h"
#include "stretto/ir/program.h"

namespace stretto {

// `index`: the operation's first expression, where it has one.
void compute_value(const Program& program, const Inst& inst, std::span<Register> regs,
                   std::int64_t index);

}  // namespace stretto
