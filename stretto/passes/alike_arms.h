// Puts the body of a `when` in its place where both of its arms say the same, up to the names of
// registers and variables that each arm has for itself. Of what a role loads from either of two
// places the consumer then has one text, which takes a GPU's compiler half of the time.
//
// It stands after split_agents, which leaves the consumer two arms that get from one pipe what the
// producer puts there from two tensors; and before what looks for loops with products.
#pragma once

#include "stretto/ir/program.h"

namespace stretto {

Program merge_alike_arms(Program program);

}  // namespace stretto
