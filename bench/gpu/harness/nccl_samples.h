// What comparisons of ours with a collective of NCCL's have: configs that were tried, and samples
// of both, call by call in turn.
#pragma once

#include <string>
#include <vector>

#include "stretto/base/json.h"

namespace stretto::bench {

struct TriedConfig {
  std::string config;
  double ms = 0;      // in a graph, median of a few; 0: not timed
  std::string error;  // why it is out
};

// out["configs"]
void add_configs(const std::vector<TriedConfig>& configs, Json& out);

struct NcclSamples {
  std::vector<double> ours_ms, nccl_ms;  // per call

  // Medians in microseconds, the rates at which they move so many bytes, the paired ratio.
  std::string to_string(double bytes) const;
  Json to_json() const;
};

}  // namespace stretto::bench
