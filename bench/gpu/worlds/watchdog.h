// What deadlines and abort checks of waits cost: the same kernels compiled with and without them,
// call by call in turn.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "stretto/base/json.h"
#include "stretto/gpu/gpu_world.h"
#include "stretto/ops/measure/gpu_time.h"

namespace stretto::bench {

struct WatchdogOptions {
  std::string only;  // cases whose label contains this
  int samples = 200;
  std::uint64_t seed = 0;
};

// Milliseconds per call of the slowest rank; sample i of both were taken one after the other.
struct WatchdogResult {
  std::string label;
  std::vector<double> with_ms, without_ms;

  MedianInterval ratio() const { return paired_ratio(with_ms, without_ms); }
  std::string to_string() const;  // a line
  Json to_json() const;           // every sample
};

// AG+GEMM 8192 x 4096 x 22016 and GEMM+RS 8192 x 11008 x 4096, a config of each family, and the
// packet all-reduce of 16 KB in a graph. Calls `done` after each.
void measure_watchdog(GpuWorld& world, const WatchdogOptions& options,
                      const std::function<void(const WatchdogResult&)>& done);

}  // namespace stretto::bench
