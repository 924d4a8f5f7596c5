// Configs of the collectives that may be the fastest on a Hopper GPU; collectives.h has the
// defaults.
// docs/performance/collectives.md, 'Why the defaults are what they are', has what was measured.
#pragma once

#include <cstdint>
#include <vector>

#include "stretto/ops/collectives/collectives.h"

namespace stretto {

enum class Collective : std::uint8_t { kAllGather, kReduceScatter, kAllReduce };
// The default first, and each once. `kind` counts for kAllReduce.
std::vector<CollectiveConfig> gpu_configs(const CollectiveDesc& desc, Collective collective,
                                          AllReduceKind kind, const GpuTarget& gpu);

}  // namespace stretto
