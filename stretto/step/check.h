// Whether a step plan makes sense, before anything of it runs. Comes after text.h or a model's
// planner, before memory.h; every reader calls it first.
#pragma once

#include "stretto/step/plan.h"

namespace stretto::step {

// UserError "step 'batch': node 'layers.0.qkv': what is wrong" unless
// - names are told once and indices are in range, and sections cover all nodes in order;
// - every program verifies, is at tile level, and is for a group's ranks or for all of them;
// - every node binds each tensor of its program but buffers once, to a buffer of its dtype with as
//   many elements or with more rows of the same size, symmetric where the program's is; gives as
//   many extents as the program has, within their bounds; and binds nothing that it writes twice;
// - constants and inputs are not written;
// - what a node reads of outputs and locals an earlier node of this step writes, on all ranks: an
//   output that a program gives on some of them alone (Tensor::given_on) is no other node's input.
void check(const Plan& plan);

}  // namespace stretto::step
