// How many groups of matrix instructions a wait for products may leave under way. An await counts
// the operations of the program, a wgmma_wait what the tensor core was given: products by threads
// are none of it, nor are those that a warpgroup leaves out since it has no rows of them.
#pragma once

#include <functional>

#include "stretto/ir/value_plan.h"

namespace stretto {

// Of the youngest products that `await` leaves under way, those that are sure to be groups on every
// way that leads there; at most as many as it says. `leaves_out`: whether a warpgroup may leave out
// the product, which depends on the rows that it says.
int groups_under_way(const Agent& agent, const Op& await,
                     const std::function<bool(const Op&)>& leaves_out);

}  // namespace stretto
