// Configs of ag_gemm that may be the fastest on a Hopper GPU; ag_gemm.h has the default.
// docs/performance/overlap.md, 'Why the defaults are what they are', has what was measured.
#pragma once

#include <vector>

#include "stretto/ops/ag_gemm/ag_gemm.h"

namespace stretto {

// The default first, and each once; factors that are not of 16 bits have the default alone.
// None where the rows that SMs push are an output, too.
std::vector<AgGemmConfig> gpu_configs(const AgGemmDesc& desc, Gather gather, const GpuTarget& gpu);

}  // namespace stretto
