// Configs of fused layers of experts that may be the fastest on a Hopper GPU. Their
// headers have the defaults, which expert_layers_sm90.cc and grouped_gemm_rs_sm90.cc define.
// docs/performance/moe.md, 'Why the defaults are what they are', has what was measured.
#pragma once

#include <vector>

#include "stretto/ops/moe/ag_grouped_gemm.h"
#include "stretto/ops/moe/ep_moe_layer.h"
#include "stretto/ops/moe/grouped_gemm_rs.h"
#include "stretto/ops/moe/moe_layer.h"

namespace stretto {

// Layers of a mixture of experts: how many SMs sum what the others multiply, or that the same do
// both, in blocks of how many columns; tokens copied into the order of the tiles, or not. Experts
// of few rows have few.
std::vector<AgGroupedConfig> gpu_configs(const AgGroupedDesc& desc, const GpuTarget& gpu);
std::vector<GroupedRsConfig> gpu_configs(const GroupedRsDesc& desc, const GpuTarget& gpu);
std::vector<MoeLayerConfig> gpu_configs(const MoeLayerDesc& desc, const GpuTarget& gpu);
// And how many SMs exchange tokens, and make how many sums beside that.
std::vector<EpMoeLayerConfig> gpu_configs(const EpMoeLayerDesc& desc, const GpuTarget& gpu);

}  // namespace stretto
