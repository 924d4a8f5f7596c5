// Configs of gemm_rs that may be the fastest on a Hopper GPU; gemm_rs.h has the default.
// docs/performance/overlap.md, 'Why the defaults are what they are', has what was measured.
#pragma once

#include <vector>

#include "stretto/ops/gemm_rs/gemm_rs.h"

namespace stretto {

// The default first where it scatters so, and each once; factors that are not of 16 bits have few.
std::vector<GemmRsConfig> gpu_configs(const GemmRsDesc& desc, Scatter scatter,
                                      const GpuTarget& gpu);

}  // namespace stretto
