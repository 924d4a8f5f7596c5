// Sizes that a program meets in nothing but what a table may say: as many rows as a partition deals
// out, packed sequences' say. The launch of every such size is one of those that the graph at the
// bound stands for, with the tables that the bound allows
// (docs/decisions/0041-what-tables-decide-by-pattern.md).
#pragma once

#include <vector>

#include "stretto/ir/program.h"

namespace stretto {

// Of each extent and scalar, in the order of their declaration, whether its bound stands for all of
// its values, in a graph for every table.
std::vector<bool> hidden_sizes(const Program& program);

}  // namespace stretto
