// Configs of gemm that may be the fastest on a Hopper GPU; gemm.h has the default.
// docs/performance/gemm.md, 'Why the defaults are what they are', has what was measured.
#pragma once

#include <vector>

#include "stretto/ops/gemm/gemm.h"

namespace stretto {

// The default first, and each once. Factors that are not of 8 or 16 bits have the default alone.
std::vector<GemmConfig> gpu_configs(const GemmDesc& desc, const GpuTarget& gpu);

}  // namespace stretto
