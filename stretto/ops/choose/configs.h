// The configs that an operator may run with on a Hopper GPU: what the chooser ranks, the benchmarks
// measure and every one of which compiles. Desc comes before, candidates.h turns both into
// programs.
#pragma once

#include <vector>

#include "stretto/ops/ag_gemm/ag_columns_sm90.h"
#include "stretto/ops/ag_gemm/ag_gemm_sm90.h"
#include "stretto/ops/collectives/collectives_sm90.h"
#include "stretto/ops/gemm/gemm_sm90.h"
#include "stretto/ops/gemm_ar/gemm_ar_sm90.h"
#include "stretto/ops/gemm_rs/gemm_rs_sm90.h"
#include "stretto/ops/moe/ag_grouped_gemm.h"
#include "stretto/ops/moe/ep_moe_layer.h"
#include "stretto/ops/moe/grouped_gemm_rs.h"
#include "stretto/ops/moe/moe_layer.h"
#include "stretto/ops/ulysses/ulysses_sm90.h"

namespace stretto {

// Each begins with the operator's default config for GPUs and names no config twice. Factors that
// are not of 16 bits have the default alone.
//
// Layers of a mixture of experts: how many SMs sum what the others multiply, or that the same do
// both, in blocks of how many columns; tokens copied into the order of the tiles, or not. Experts
// of few rows have few.
std::vector<AgGroupedConfig> gpu_configs(const AgGroupedDesc& desc, const GpuTarget& gpu);
std::vector<GroupedRsConfig> gpu_configs(const GroupedRsDesc& desc, const GpuTarget& gpu);
std::vector<MoeLayerConfig> gpu_configs(const MoeLayerDesc& desc, const GpuTarget& gpu);
// And how many SMs exchange tokens, and make how many sums beside that.
std::vector<EpMoeLayerConfig> gpu_configs(const EpMoeLayerDesc& desc, const GpuTarget& gpu);

}  // namespace stretto
