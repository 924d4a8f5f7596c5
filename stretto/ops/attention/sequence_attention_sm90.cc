#include <algorithm>

#include "stretto/ops/attention/attention.h"
#include "stretto/ops/attention/sequence_attention.h"
#include "stretto/ops/attention/sequence_tiles.h"

namespace stretto {
namespace {

// Most ranks whose keys and values a GPU has room for by default.
constexpr int kMostHeldRanks = 8;

}  // namespace

int heads_in_l2(const SequenceAttentionDesc& d, std::int64_t tokens) {
  constexpr std::int64_t kKeptBytes = std::int64_t{24} << 20;
  std::int64_t bytes = tokens * d.head_dim * 2 * static_cast<std::int64_t>(size_bytes(d.dtype));
  std::int64_t kv_heads = std::clamp<std::int64_t>(kKeptBytes / bytes, 1, d.num_kv_heads);
  while (d.num_kv_heads % kv_heads != 0) --kv_heads;
  return static_cast<int>(kv_heads) * (d.num_heads / d.num_kv_heads);
}

SequenceAttentionConfig default_config(const SequenceAttentionDesc& d, Target target) {
  std::int64_t chunk = ceil_div(d.m, chunks_per_rank(d) * d.world_size);
  if (target == Target::kCpu) {
    return {.tile_rows = std::min<std::int64_t>(32, chunk),
            .tile_kv = std::min<std::int64_t>(64, chunk),
            .comm_rows = std::min<std::int64_t>(256, chunk)};
  }
  AttentionTile tile = gpu_attention_tile(d.dtype, d.head_dim);
  SequenceAttentionConfig c{
      .tile_rows = tile.rows, .tile_kv = tile.kv, .num_stages = tile.num_stages};
  // Whose chunk is whose takes registers where the remainder is no mask: 128 keys spill then.
  if (!masks_ranks(d.world_size)) c.tile_kv = std::min<std::int64_t>(c.tile_kv, 112);
  c.head_group = heads_in_l2(d, d.m);
  // A copy costs a few calls of the host, so there are few.
  std::int64_t cols = d.num_kv_heads * d.head_dim;
  c.comm_rows = std::min(chunk, std::max<std::int64_t>((std::int64_t{1} << 24) / cols, 1));
  c.num_workers =
      gpu_workers(ceil_div(chunk, c.tile_rows) * chunks_per_rank(d) * d.num_heads, target.sms());
  return c;
}

SequenceAttentionConfig default_ring_config(const SequenceAttentionDesc& d, Target target) {
  SequenceAttentionConfig c = default_config(d, target);
  c.num_queues = 1;
  if (target == Target::kCuda && d.world_size <= kMostHeldRanks) {
    c.num_slots = std::max(d.world_size - 1, 1);
  } else if (target == Target::kCuda) {
    // Sums that are loaded and stored in a loop over steps take registers: more keys spill then.
    c.tile_kv = std::min<std::int64_t>(c.tile_kv, 80);
    c.head_group = heads_in_l2(d, ceil_div(d.m, std::int64_t{d.world_size}));
  }
  // On a GPU a block waits for what the queue is to pass on, and of two ranks none passes anything.
  if (d.world_size > 2) c.num_workers = std::min(c.num_workers, target.sms() - 1);
  return c;
}

SequenceAttentionConfig default_token_ring_config(const SequenceAttentionDesc& d, Target target) {
  SequenceAttentionConfig c = default_config(d, target);
  std::int64_t cols = d.num_heads * d.head_dim;
  c.comm_rows = std::min(c.comm_rows, std::max<std::int64_t>((std::int64_t{1} << 24) / cols, 1));
  if (target == Target::kCuda) {
    // What a window leaves of whose chunks takes registers as well: 96 keys spill then.
    bool masks = masks_ranks(d.world_size);
    c.tile_kv = std::min<std::int64_t>(c.tile_kv, d.window > 0 && !masks ? 80 : 96);
    c.head_group = heads_in_l2(d, ceil_div(d.m, std::int64_t{d.world_size}));
  }
  return c;
}

}  // namespace stretto
