// Configs of gemm_a2a and a2a_gemm that may be the fastest on a Hopper GPU; ulysses.h has the
// defaults.
// docs/performance/gemm.md, 'Why the defaults are what they are', has what was measured.
#pragma once

#include <vector>

#include "stretto/ops/ulysses/ulysses.h"

namespace stretto {

// The default first, and each once; factors that are not of 16 bits have the default alone.
std::vector<UlyssesConfig> gpu_gemm_a2a_configs(const UlyssesDesc& desc, const GpuTarget& gpu);
std::vector<UlyssesConfig> gpu_a2a_gemm_configs(const UlyssesDesc& desc, const GpuTarget& gpu);

}  // namespace stretto
