// The case of a router, for the catalog and for tests of what the catalog's sizes do not ask for.
#pragma once

#include "stretto/ops/moe/moe_shapes.h"
#include "stretto/testing/cases/moe_case.h"

namespace stretto {

// By seed tokens choose experts in another way (routing_case.h). At random scores are exact and
// some of them equal where nothing is added to them, else clearly apart.
OpCase route_case(const RouteDesc& desc, const RouteConfig& config, std::uint64_t seed,
                  std::optional<std::int64_t> rows = {});

}  // namespace stretto
