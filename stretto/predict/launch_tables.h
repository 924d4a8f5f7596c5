// What the tables of a launch hold, given or made by it, as far as who asks for a prediction says
// so. Operators say it for a usual launch (ops/moe/even_routing.h).
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "stretto/ir/program.h"
#include "stretto/proof/table_witness.h"

namespace stretto::predict {

// By name, all entries in row-major order. Names that a program does not have are passed over.
using TableValues = std::map<std::string, std::vector<std::int32_t>>;

// The tables of every rank, in a launch with these extents. None: nothing is known.
using LaunchTables =
    std::function<std::vector<TableValues>(const std::vector<std::int64_t>& extents)>;

// Tables of which nothing is known hold the largest values of their contracts. InternalError for
// values that break theirs.
std::unique_ptr<TableWitness> tables_of_launch(const Program& program,
                                               const std::vector<std::int64_t>& extents,
                                               const LaunchTables& known);

}  // namespace stretto::predict
