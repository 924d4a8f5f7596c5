#include <algorithm>

#include "stretto/ops/attention/attention.h"
#include "stretto/ops/attention/flash_decode.h"

namespace stretto {

FlashDecodeConfig default_config(const FlashDecodeDesc& d, Target target) {
  FlashDecodeConfig c{.tile_kv = d.block};
  if (target == Target::kCpu) return c;
  bool matrix = size_bytes(d.dtype) == 2 && d.head_dim % 32 == 0 && d.head_dim <= 256;
  std::int64_t most = matrix ? 64 : 32;
  while (c.tile_kv > most && c.tile_kv % 2 == 0) c.tile_kv /= 2;
  if (matrix) {
    // Of more rows the sums would not fit a thread's registers.
    c.tile_rows = d.head_dim <= 64 ? 256 : 128;
    auto stages = [&] {
      return decode_stages(tile_rows(d, c), c.tile_kv, d.head_dim, target.gpu());
    };
    while (stages() < 2 && c.tile_kv % 2 == 0) c.tile_kv /= 2;
    // More blocks ahead, where they fit, were slower (docs/performance/attention_ranks.md, 'Why the
    // defaults are what they are').
    constexpr int kMostAhead = 2;
    c.num_stages = std::min(stages(), kMostAhead);
  }
  std::int64_t row_tiles = ceil_div(most_rows(d), tile_rows(d, c));
  // Few: a row takes microseconds, reading the cache takes what SMs there are.
  constexpr int kMostCombiners = 12;
  std::int64_t rows = d.m * d.num_heads;
  c.num_combiners = gpu_workers(rows, kMostCombiners);
  std::int64_t room = (target.sms() - c.num_combiners) / (d.num_kv_heads * row_tiles);
  std::int64_t read = d.tokens_per_rank();
  if (d.window > 0) {  // blocks that it may lie across
    std::int64_t blocks = ceil_div(d.window + d.m - 1, d.block) + 1;
    read = std::min(read, ceil_div(blocks, std::int64_t{d.world_size}) * d.block);
  }
  c.splits =
      std::clamp<std::int64_t>(ceil_div(read, c.tile_kv), 1, std::max<std::int64_t>(room, 1));
  c.num_workers =
      gpu_workers(c.splits * row_tiles * d.num_kv_heads, target.sms() - c.num_combiners);
  return c;
}

}  // namespace stretto
