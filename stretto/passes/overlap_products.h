// Software pipelining of loops with two products of which the second works on what was computed
// from the first, as attention has: while the tensor core works on the first product of an
// iteration and on the second of the one before, the agent computes in between on neither.
//
//   dot 1(i); middle(i); dot 2(i)   becomes   dot 1(i) | dot 2(i - 1); middle(i)
//
// A factor of the second product that is made in registers has two sets of them, where threads have
// as many, and iterations come in pairs: the factor of one is made while the product still reads
// that of the other. Operations of the iteration before carry stage 1. Where several warpgroups
// share the agent, the GPU lowering lets them issue such pairs in turn: one multiplies while the
// others compute. (FlashAttention-3, Shah et al. 2024, section 3.2: intra-warpgroup overlap.) It
// stands after split_agents, which made the products asynchronous and their operands slots.
#pragma once

#include "stretto/ir/program.h"

namespace stretto {

Program overlap_products(Program program);

}  // namespace stretto
