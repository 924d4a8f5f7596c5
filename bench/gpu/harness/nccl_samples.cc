#include "bench/gpu/harness/nccl_samples.h"

#include <fmt/format.h>

#include "stretto/ops/measure/gpu_time.h"

namespace stretto::bench {

void add_configs(const std::vector<TriedConfig>& configs, Json& out) {
  for (const TriedConfig& t : configs) {
    Json row = {{"config", t.config}};
    if (t.ms > 0) row["ms"] = t.ms;
    if (!t.error.empty()) row["error"] = t.error;
    out["configs"].push_back(row);
  }
}

std::string NcclSamples::to_string(double bytes) const {
  double ours = median(ours_ms), nccl = median(nccl_ms);
  MedianInterval ratio = paired_ratio(nccl_ms, ours_ms);
  return fmt::format(
      "ours {:9.2f} NCCL {:9.2f} us {:6.1f} {:6.1f} GB/s ratio {:.2f} [{:.2f}, {:.2f}]", ours * 1e3,
      nccl * 1e3, bytes / ours * 1e-6, bytes / nccl * 1e-6, ratio.median, ratio.low, ratio.high);
}

Json NcclSamples::to_json() const {
  MedianInterval ratio = paired_ratio(nccl_ms, ours_ms);
  return {{"ours_ms", ours_ms},
          {"nccl_ms", nccl_ms},
          {"nccl_over_ours", {{"median", ratio.median}, {"low", ratio.low}, {"high", ratio.high}}}};
}

}  // namespace stretto::bench
