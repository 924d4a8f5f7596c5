// Configs of gemm_ag that may be the fastest on a Hopper GPU; its header has the default.
// docs/performance/gemm.md, 'Why the defaults are what they are', has what was measured.
#pragma once

#include <vector>

#include "stretto/ops/gemm_ag/gemm_ag.h"

namespace stretto {

// The default first, and each once; factors that are not of 16 bits have the default alone.
std::vector<GemmAgConfig> gpu_configs(const GemmAgDesc& desc, const GpuTarget& gpu);

}  // namespace stretto
