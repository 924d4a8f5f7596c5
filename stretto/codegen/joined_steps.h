// Vectors that a producer's threads load for several steps of a loop at once. A column of a matrix,
// such as the scales of rows for a step along k, is a row of 4 bytes each, and costs what as many
// lines cost: the part of a multiprocessor through which loads, copies and the matrix instructions'
// reads of shared memory pass takes one of them a cycle. Columns of four steps that follow each
// other are rows of 16 bytes, four to a copy. So their slots lie side by side, are filled at once
// and handed over at once, whatever else shares their barriers, too. What this gains is in
// docs/decisions/0007-fp8-products.md.
#pragma once

#include "stretto/codegen/role_plan.h"

namespace stretto {

inline constexpr int kJoinedSteps = 4;  // 16 bytes of fp32, the most that a thread copies at once

// Decides which groups of pipes are filled that way: those with such a column, every loop of which
// takes a multiple of so many steps and does nothing but put. Two times the steps are the fewest
// slots of such a group. Before their slots are placed.
void join_steps(const Program& program, const Role& role, RolePlan& plan);

// The loop whose body holds a put; null where it stands in none.
const Op* loop_around(const Block& block, const Op& put);

}  // namespace stretto
