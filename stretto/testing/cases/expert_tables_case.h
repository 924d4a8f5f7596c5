// The case of tables of fused layers, for the catalog and for tests of what the catalog's sizes do
// not ask for.
#pragma once

#include <vector>

#include "stretto/ops/moe/expert_tables.h"
#include "stretto/testing/cases/moe_case.h"

namespace stretto {

// Of a launch of `m` tokens whose experts are `chosen` [m, top_k].
OpCase expert_tables_case(const ExpertTablesDesc& desc, const ExpertTablesConfig& config,
                          std::int64_t m, const std::vector<std::int32_t>& chosen);

}  // namespace stretto
