#include <algorithm>

#include "stretto/ops/attention/attention.h"

namespace stretto {
namespace {

// The fastest of what was tried (docs/performance/attention.md, 'Why the defaults are what they
// are'): small heads take three warpgroups, causal rows are dealt out by ticket, four heads at a
// time keep their keys in L2, and two blocks share the keys and values of long sequences without a
// mask.
AttentionConfig gpu_config(const AttentionDesc& d, const GpuTarget& gpu) {
  constexpr int kGroup = 4;
  constexpr std::int64_t kLong = 4096, kLonger = 8192;  // tokens; the last block wastes little
  AttentionTile tile = gpu_attention_tile(d.dtype, d.head_dim);
  bool pipelined = tile.num_stages > 0, small = d.head_dim <= 64;
  // With tickets three slots, whose places are no constants, would spill.
  if (pipelined && small) tile = {.rows = 192, .kv = 128, .num_stages = d.causal ? 4 : 3};
  std::int64_t heads = split_heads(d).heads_per_rank;
  AttentionConfig c{.tile_rows = tile.rows,
                    .tile_kv = tile.kv,
                    .num_stages = tile.num_stages,
                    .tickets = pipelined && d.causal,
                    .head_group = heads % kGroup == 0 ? kGroup : 0};
  if (pipelined && !small && d.head_dim <= 128 && !d.causal && d.m >= kLong) {
    c.cluster_size = 2;
    c.tile_rows *= c.cluster_size;
    if (d.max_tokens >= kLonger) {
      c.tile_kv = 176;
      c.query_slots = 1;
    }
  }
  c.num_workers =
      gpu_workers(ceil_div(d.m, c.tile_rows) * heads * d.batch, gpu.sms / c.cluster_size);
  return c;
}

}  // namespace

int decode_stages(std::int64_t rows, std::int64_t kv, std::int64_t head_dim, const GpuTarget& gpu) {
  const auto block_bytes = static_cast<std::int64_t>(gpu.shared_bytes);
  constexpr std::int64_t kElement = 2, kMost = 4;
  constexpr std::int64_t kBeside = 20 * 1024;  // barriers, staging; 18688 of 256 rows
  constexpr std::int64_t kFew = 8, kRowsOfWarpgroup = 64;
  if (rows > kFew) rows = ceil_div(rows, kRowsOfWarpgroup) * kRowsOfWarpgroup;
  if (rows > kRowsOfWarpgroup) rows = ceil_div(rows, 2 * kRowsOfWarpgroup) * 2 * kRowsOfWarpgroup;
  std::int64_t queries = 2 * rows * head_dim * kElement, step = 2 * kv * head_dim * kElement;
  std::int64_t fit = std::max<std::int64_t>(block_bytes - kBeside - queries, 0) / step;
  return static_cast<int>(std::min(fit, kMost));
}

AttentionTile gpu_attention_tile(DType dtype, std::int64_t head_dim) {
  if (size_bytes(dtype) != 2 || head_dim % 16 != 0 || head_dim > 256) {
    return {.rows = 16, .kv = head_dim <= 128 ? 32 : 8};  // of more scores threads would spill
  }
  return {.rows = 128, .kv = head_dim <= 128 ? 128 : head_dim <= 192 ? 64 : 32, .num_stages = 2};
}

AttentionConfig gpu_rope_config(const AttentionDesc& d, const GpuTarget& gpu,
                                std::int64_t most_rows) {
  constexpr std::int64_t kElements = 4096;  // of a head's rows, two halves of 8 a thread
  AttentionConfig c{.tile_rows = std::clamp<std::int64_t>(kElements / d.head_dim, 1, most_rows),
                    .head_group = 1};
  HeadSplit split = split_heads(d);
  std::int64_t heads = split.heads_per_rank + split.kv_heads_per_rank;
  c.num_workers = gpu_workers(ceil_div(d.m, c.tile_rows) * heads, gpu.sms);
  return c;
}

AttentionConfig default_config(const AttentionDesc& d, Target target) {
  if (target == Target::kCuda) return gpu_config(d, target.gpu());
  return {.tile_rows = std::min<std::int64_t>(32, d.m),
          .tile_kv = std::min<std::int64_t>(64, d.max_tokens)};
}

}  // namespace stretto
