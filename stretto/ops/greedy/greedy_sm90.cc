#include <algorithm>

#include "stretto/ops/greedy/greedy.h"

namespace stretto {

GreedyConfig default_config(const GreedyDesc& d, Target target) {
  if (target == Target::kCpu) return {.tile_vocab = std::min<std::int64_t>(d.vocab, 4096)};
  GreedyConfig c;
  c.num_workers = gpu_workers(ceil_div(d.vocab, c.tile_vocab), target.sms() / 2);
  return c;
}

}  // namespace stretto
