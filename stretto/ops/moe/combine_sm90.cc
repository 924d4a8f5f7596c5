#include <algorithm>

#include "stretto/ops/moe/combine.h"

namespace stretto {

CombineConfig default_config(const CombineDesc& d, Target target) {
  if (target == Target::kCpu) return {.tile_rows = std::min<std::int64_t>(16, d.shape.m)};
  constexpr std::int64_t kElements = 4096, kOfThread = 256;  // of a tile; on their way
  CombineConfig c{.threads = row_threads(d.hidden)};
  std::int64_t most = kOfThread * (c.threads > 0 ? c.threads : 256) / (d.shape.top_k * d.hidden);
  c.tile_rows = std::clamp<std::int64_t>(std::min(kElements / d.hidden, most), 1, d.shape.m);
  c.num_workers = gpu_workers(ceil_div(d.shape.m, c.tile_rows), target.sms() / 2);
  return c;
}

}  // namespace stretto
