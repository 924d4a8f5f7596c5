#include <algorithm>

#include "stretto/ops/attention/attention.h"
#include "stretto/ops/attention/online_softmax.h"
#include "stretto/ops/attention/packed_attention.h"

namespace stretto {

PackedAttentionConfig default_config(const PackedAttentionDesc& d, Target target) {
  std::int64_t mean = ceil_div(d.m, d.sequences), most_kv = d.page > 0 ? d.page : d.m;
  PackedAttentionConfig c{.tile_rows = std::min<std::int64_t>(32, d.m),
                          .tile_kv = std::min<std::int64_t>(64, most_kv)};
  if (target == Target::kCuda) {
    AttentionTile tile = gpu_attention_tile(d.dtype, d.head_dim);
    c = {.tile_rows = tile.rows, .tile_kv = tile.kv, .num_stages = tile.num_stages};
    // What e4m3 stands for lies in shared memory beside the slots.
    if (d.fp8 && c.tile_kv > 16) c.tile_kv /= 2;
    c.tickets = true;
  }
  while (d.page % c.tile_kv != 0) --c.tile_kv;
  // Short enough that a few sequences' runs keep all SMs busy. Threads have registers for the sums
  // of the runs before beside scores of 64 keys and heads that are not large, and not where they
  // convert e4m3 (docs/decisions/0080-runs-from-token-0-on.md).
  constexpr std::int64_t kFirstRun = 256, kMostHead = 128, kMostKeys = 64;
  if (target == Target::kCuda && d.page > 0 && !d.fp8 && d.head_dim <= kMostHead &&
      c.tile_kv <= kMostKeys && c.num_stages > 0 &&
      multiplied_by_tensor_core(d.dtype, c.tile_kv, d.head_dim)) {
    c.first_run = ceil_div(kFirstRun, c.tile_kv) * c.tile_kv;
  }
  // A sequence may be longer than others by a few times before its tiles take turns.
  constexpr std::int64_t kLonger = 4;
  c.blocks = std::min(ceil_div(mean, c.tile_rows) * kLonger, ceil_div(d.m, c.tile_rows));
  if (target == Target::kCuda) {
    c.num_workers = gpu_workers(d.sequences * c.blocks * d.num_heads, target.sms());
  }
  return c;
}

}  // namespace stretto
