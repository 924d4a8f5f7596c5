// What the rows of the catalog make of a shape: descs and configs of the parts of a mixture of
// experts, of few experts where there are few tokens. Sizes that are left open are those of a test.
#pragma once

#include "stretto/ops/moe/ag_grouped_gemm.h"
#include "stretto/ops/moe/combine.h"
#include "stretto/ops/moe/ep_moe_layer.h"
#include "stretto/ops/moe/ep_place.h"
#include "stretto/ops/moe/ep_return.h"
#include "stretto/ops/moe/ep_send.h"
#include "stretto/ops/moe/expert_tables.h"
#include "stretto/ops/moe/grouped_gemm.h"
#include "stretto/ops/moe/grouped_gemm_rs.h"
#include "stretto/ops/moe/moe_layer.h"
#include "stretto/ops/moe/route.h"
#include "stretto/ops/moe/sorted_gemm_rs.h"
#include "stretto/ops/operator/operator.h"

namespace stretto {

// Tests' shapes of so many rows have biases of experts.
inline constexpr std::int64_t kRowsWithBiases = 10;
inline bool has_biases(const OpShape& s) { return s.test_config && s.m == kRowsWithBiases; }
// Where there are biases, that of GPT-OSS, with a limit that small numbers reach.
inline GatedUnit gate_of(const OpShape& s) {
  return has_biases(s) ? GatedUnit{.alpha = 1.702, .beta = 1, .limit = 0.75} : GatedUnit{};
}

RouteDesc route_desc(const OpShape& shape);
RouteDesc limited_route_desc(const OpShape& shape);
RouteConfig route_config(const RouteDesc& desc, const OpShape& shape);
// Several tiles and workers of every kind also where tokens are few.
RouteConfig test_route_config(const RouteDesc& desc, Target target);

ExpertTablesDesc expert_tables_desc(const OpShape& shape);
ExpertTablesConfig expert_tables_config(const ExpertTablesDesc& desc, const OpShape& shape);

GroupedDesc grouped_desc(const OpShape& shape);
GroupedDesc grouped_swiglu_desc(const OpShape& shape);
GroupedDesc grouped_masked_desc(const OpShape& shape);
GroupedConfig grouped_config(const GroupedDesc& desc, const OpShape& shape);
SortedRsDesc sorted_gemm_rs_desc(const OpShape& shape, bool all_reduce);
SortedRsConfig sorted_gemm_rs_config(const SortedRsDesc& desc, const OpShape& shape);
CombineDesc combine_desc(const OpShape& shape);
CombineConfig combine_config(const CombineDesc& desc, const OpShape& shape);

// Of fused layers: 5 experts of which each token takes 2.
AgGroupedDesc ag_grouped_gemm_desc(const OpShape& shape);
AgGroupedConfig ag_grouped_gemm_config(const AgGroupedDesc& desc, const OpShape& shape);
GroupedRsDesc grouped_gemm_rs_desc(const OpShape& shape, bool all_reduce);
GroupedRsConfig grouped_gemm_rs_config(const GroupedRsDesc& desc, const OpShape& shape);
MoeLayerDesc moe_layer_desc(const OpShape& shape);
MoeLayerConfig moe_layer_config(const MoeLayerDesc& desc, const OpShape& shape);
EpMoeLayerDesc ep_moe_layer_desc(const OpShape& shape);  // 32 experts from 1001 tokens on
EpMoeLayerConfig ep_moe_layer_config(const EpMoeLayerDesc& desc, const OpShape& shape);

EpDesc ep_desc(const OpShape& shape);
SendConfig ep_send_config(const EpDesc& desc, const OpShape& shape);
PlaceConfig ep_place_config(const EpDesc& desc, const OpShape& shape);
ReturnConfig ep_return_config(const EpDesc& desc, const OpShape& shape);

}  // namespace stretto
