// Configs of gemm_ar that may be the fastest on a Hopper GPU; gemm_ar.h has the default.
// docs/performance/gemm_ar.md, 'Why the defaults are what they are', has what was measured.
#pragma once

#include <vector>

#include "stretto/ops/gemm_ar/gemm_ar.h"

namespace stretto {

// The default first, and each once; factors that are not of 16 bits have the default alone.
std::vector<GemmArConfig> gpu_configs(const GemmArDesc& desc, ReduceShots shots,
                                      const GpuTarget& gpu);

}  // namespace stretto
