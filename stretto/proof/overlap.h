// Geometry of boxes: which overlap, and whether some cover another.
#pragma once

#include <functional>
#include <vector>

#include "stretto/proof/instance_graph.h"

namespace stretto {

// Calls fn(i, j) for every a[i] that overlaps b[j]: a sweep along the dimension that separates them
// best.
void for_each_overlap(const std::vector<Box>& a, const std::vector<Box>& b,
                      const std::function<void(std::size_t, std::size_t)>& fn);

// What `pieces` leave uncovered of `box`, as disjoint boxes; empty when they cover it.
std::vector<Box> uncovered(const Box& box, const std::vector<Box>& pieces);

}  // namespace stretto
