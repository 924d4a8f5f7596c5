// How long configs take, while the fastest of them is looked for.
#pragma once

#include <vector>

#include "stretto/gpu/gpu_world.h"
#include "stretto/ops/measure/gpu_time.h"

namespace stretto::bench {

// Milliseconds of each call on the first GPU, the median of a few in turn; 0 of empty calls.
inline std::vector<double> search_times(GpuWorld& world, const std::vector<GpuCall>& calls,
                                        int num_sets) {
  std::vector<GpuCall> there;
  for (const GpuCall& call : calls) {
    if (call) there.push_back(call);
  }
  std::vector<double> medians(calls.size(), 0.0);
  if (there.empty()) return medians;
  auto ms = time_gpu(world.device(0), world.stream(0), there,
                     {.num_sets = num_sets, .warmup_ms = 100, .samples = 9});
  auto next = ms.begin();
  for (std::size_t i = 0; i < calls.size(); ++i) {
    if (calls[i]) medians[i] = median(*next++);
  }
  return medians;
}

}  // namespace stretto::bench
