// Where a program's run-time sizes make a difference.
#pragma once

#include <cstdint>
#include <set>
#include <vector>

#include "stretto/ir/program.h"

namespace stretto {

// Distances after which something new begins: tiles, a rank's share of a bound, and what sizes and
// tiles are divided by.
std::set<std::int64_t> size_steps(const Program& program);

// What sizes and tiles are divided by: part of the above.
std::set<std::int64_t> size_divisors(const Program& program);

// What sizes are divided by, without what tiles alone are.
std::set<std::int64_t> extent_divisors(const Program& program);

// Sizes from which on a comparison has another truth than for the one before: of comparisons of
// that size with constants, the rank and, at their bounds, other sizes. Comparisons of sizes with
// tiles and loop counters change at the steps, plus the constants that are added to them.
// Some are left out where it would take too long to look through them. Of extents and scalars, in
// order.
std::vector<std::set<std::int64_t>> size_boundaries(const Program& program);

}  // namespace stretto
