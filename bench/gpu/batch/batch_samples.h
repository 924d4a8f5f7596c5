// Times in gpu_batch's JSON: a median for who reads one number, and every sample for intervals
// (bench/gpu/results.py).
#pragma once

#include <string>
#include <vector>

#include "stretto/base/json.h"
#include "stretto/base/statistics.h"

namespace stretto::bench {

// "NAME_ms" and "NAME_samples_ms"; "ms" and "samples_ms" where there is no name.
inline void keep_samples(Json& out, const std::string& name, const std::vector<double>& ms) {
  const std::string stem = name.empty() ? "" : name + "_";
  out[stem + "ms"] = median(ms);
  out[stem + "samples_ms"] = ms;
}

}  // namespace stretto::bench
