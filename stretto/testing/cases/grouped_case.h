// The case of grouped products, for the catalog and for checks of configs that its sizes do not ask
// for.
#pragma once

#include "stretto/ops/moe/grouped_gemm.h"
#include "stretto/testing/cases/moe_case.h"

namespace stretto {

// Ranks have rows in different ways, by seed (routing_case.h).
OpCase grouped_case(const GroupedDesc& desc, const GroupedConfig& config, std::uint64_t seed,
                    std::optional<std::int64_t> rows = {});

}  // namespace stretto
