// Scaled products of pipelined roles, taken apart: the product of an iteration into an accumulator
// of its own, then scaled and added to the sum.
//
//   s = dot_scaled(s, a, b, u, v)   becomes   p = dot(0, a, b); s = s + p * (u * v)
//
// The slots of a and b are then free before the sum is touched, and one warpgroup multiplies while
// another adds. The tensor core adds fp8 products with fewer bits than fp32 has; here it never adds
// more than one iteration's. (Two-level accumulation: DeepSeek-V3 technical report, arXiv
// 2412.19437, section 3.3.2.) It stands before split_agents, which gives the product its slots.
#pragma once

#include "stretto/ir/program.h"

namespace stretto {

Program expand_scaled_products(Program program);

}  // namespace stretto
