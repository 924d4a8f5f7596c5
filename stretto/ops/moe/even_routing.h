// What the tables of a mixture of experts hold where tokens go to all experts alike: every token's
// experts are different ones, drawn by lot. Predictions are made for such a launch. The largest
// values that contracts allow would be all tokens at one expert, and every tile waiting for all.
#pragma once

#include "stretto/ops/moe/ag_grouped_gemm.h"
#include "stretto/ops/moe/combine.h"
#include "stretto/ops/moe/ep_desc.h"
#include "stretto/ops/moe/ep_moe_layer.h"
#include "stretto/ops/moe/expert_tables.h"
#include "stretto/ops/moe/grouped_gemm.h"
#include "stretto/ops/moe/grouped_gemm_rs.h"
#include "stretto/ops/moe/moe_layer.h"
#include "stretto/ops/moe/sorted_gemm_rs.h"
#include "stretto/predict/launch_tables.h"

namespace stretto {

predict::LaunchTables even_routing(const ExpertTablesDesc& desc);
// For layers that are given their tiles, in this order; without one, in a class for each rank.
predict::LaunchTables even_routing(const ExpertTiles& tiles, const ExpertTileOrder& order);
predict::LaunchTables even_routing(const AgGroupedDesc& desc, const AgGroupedConfig& config);
predict::LaunchTables even_routing(const GroupedRsDesc& desc, const GroupedRsConfig& config);
predict::LaunchTables even_routing(const MoeLayerDesc& desc, const MoeLayerConfig& config);
// For the tables that it is given and those that it makes.
predict::LaunchTables even_routing(const EpMoeLayerDesc& desc, const EpMoeLayerConfig& config);
// For rows that lie expert by expert, without spare ones. A masked expert may have as many rows as
// there is room for: nothing is said.
predict::LaunchTables even_routing(const GroupedDesc& desc);
predict::LaunchTables even_routing(const CombineDesc& desc);
predict::LaunchTables even_routing(const SortedRsDesc& desc);

// For the steps of an exchange: ep_send.h, ep_place.h, products of the received rows, ep_return.h.
predict::LaunchTables even_routing(const EpDesc& desc);

}  // namespace stretto
