#include <algorithm>

#include "stretto/ops/gemm/linear.h"
#include "stretto/ops/gemm/quantize_fp8.h"

namespace stretto {

QuantizeConfig default_config(const QuantizeDesc& d, Target target) {
  const std::int64_t rows = d.m * d.rows_per_token;
  if (target == Target::kCpu) return {.tile_rows = std::min<std::int64_t>(16, rows)};
  constexpr std::int64_t kMostRows = 32;  // 16 elements a thread
  QuantizeConfig c{.tile_rows = std::min(kMostRows, rows)};
  c.num_workers =
      gpu_workers(ceil_div(rows, c.tile_rows) * ceil_div(d.k, kScaleBlock), target.sms());
  return c;
}

}  // namespace stretto
