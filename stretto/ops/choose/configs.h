// The configs that an operator may run with on a Hopper GPU: what the chooser ranks, the benchmarks
// measure and every one of which compiles. Desc comes before, candidates.h turns both into
// programs.
//
// Tiles are [rows, columns, step] in elements; their stages fill the 227 KiB of shared memory
// beside the staging of a store. Odd widths fill the last wave of tiles where wide ones leave SMs
// idle.
#pragma once

#include <vector>

#include "stretto/ops/ag_gemm/ag_columns_gemm.h"
#include "stretto/ops/ag_gemm/ag_gemm.h"
#include "stretto/ops/collectives/collectives.h"
#include "stretto/ops/gemm/gemm.h"
#include "stretto/ops/gemm_ar/gemm_ar.h"
#include "stretto/ops/gemm_rs/gemm_rs.h"
#include "stretto/ops/moe/ag_grouped_gemm.h"
#include "stretto/ops/moe/ep_moe_layer.h"
#include "stretto/ops/moe/grouped_gemm_rs.h"
#include "stretto/ops/moe/moe_layer.h"
#include "stretto/ops/ulysses/ulysses.h"

namespace stretto {

// Each begins with the operator's default config for GPUs and names no config twice. Factors that
// are not of 16 bits, of 8 in products without communication, have the default alone.
std::vector<GemmConfig> gpu_configs(const GemmDesc& desc, const GpuTarget& gpu);
// None where the rows that SMs push are an output, too.
std::vector<AgGemmConfig> gpu_configs(const AgGemmDesc& desc, Gather gather, const GpuTarget& gpu);
std::vector<AgColumnsConfig> gpu_configs(const AgColumnsDesc& desc, Gather gather,
                                         const GpuTarget& gpu);
std::vector<GemmRsConfig> gpu_configs(const GemmRsDesc& desc, Scatter scatter,
                                      const GpuTarget& gpu);
std::vector<GemmArConfig> gpu_configs(const GemmArDesc& desc, ReduceShots shots,
                                      const GpuTarget& gpu);

// Layers of a mixture of experts: how many SMs sum what the others multiply, or that the same do
// both, in blocks of how many columns; tokens copied into the order of the tiles, or not. Experts
// of few rows have few.
std::vector<AgGroupedConfig> gpu_configs(const AgGroupedDesc& desc, const GpuTarget& gpu);
std::vector<GroupedRsConfig> gpu_configs(const GroupedRsDesc& desc, const GpuTarget& gpu);
std::vector<MoeLayerConfig> gpu_configs(const MoeLayerDesc& desc, const GpuTarget& gpu);
// And how many SMs exchange tokens, and make how many sums beside that.
std::vector<EpMoeLayerConfig> gpu_configs(const EpMoeLayerDesc& desc, const GpuTarget& gpu);

std::vector<UlyssesConfig> gpu_gemm_a2a_configs(const UlyssesDesc& desc, const GpuTarget& gpu);
std::vector<UlyssesConfig> gpu_a2a_gemm_configs(const UlyssesDesc& desc, const GpuTarget& gpu);

enum class Collective : std::uint8_t { kAllGather, kReduceScatter, kAllReduce };
// `kind` counts for kAllReduce.
std::vector<CollectiveConfig> gpu_configs(const CollectiveDesc& desc, Collective collective,
                                          AllReduceKind kind, const GpuTarget& gpu);

}  // namespace stretto
