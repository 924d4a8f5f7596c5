// Which packet buffers a kernel keeps in lines instead of words (device/sm90/packet.h).
#pragma once

#include <vector>

#include "stretto/codegen/role_plan.h"
#include "stretto/ir/program.h"

namespace stretto {

// By tensor: whoever stores or loads its packets does so with whole warps, of whose threads each
// has 16 bytes and eight have 128 of a row that begin at a multiple of them, or, who stores, with a
// product's fragments of as many columns. Words take 1.8 times the bytes.
std::vector<bool> tensors_in_lines(const Program& program, const std::vector<Role>& roles,
                                   const std::vector<RolePlan>& plans);

}  // namespace stretto
