// The instance graph as text: what `stretto explain --emit instances` shows. Every agent of every
// rank with its accesses and synchronisation in order, as the proof sees them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "stretto/ir/program.h"

namespace stretto {

// `program` at schedule level; errors as expand().
std::string print_instances(const Program& program, const std::vector<std::int64_t>& extents);

}  // namespace stretto
