// Configs of ag_columns_gemm that may be the fastest on a Hopper GPU; its header has the default.
// docs/performance/overlap.md, 'Why the defaults are what they are', has what was measured.
#pragma once

#include <vector>

#include "stretto/ops/ag_gemm/ag_columns_gemm.h"

namespace stretto {

// The default first, and each once; factors that are not of 16 bits have the default alone.
std::vector<AgColumnsConfig> gpu_configs(const AgColumnsDesc& desc, Gather gather,
                                         const GpuTarget& gpu);

}  // namespace stretto
