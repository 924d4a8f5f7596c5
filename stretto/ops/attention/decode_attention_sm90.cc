#include <algorithm>

#include "stretto/ops/attention/attention.h"
#include "stretto/ops/attention/decode_attention.h"

namespace stretto {

DecodeAttentionConfig default_decode_config(const AttentionDesc& d, Target target) {
  std::int64_t heads = split_heads(d).heads_per_rank;
  std::int64_t blocks = heads / heads_of_a_tile(d);
  if (target == Target::kCpu) return {.tile_kv = std::min<std::int64_t>(64, d.max_tokens)};
  bool matrix = size_bytes(d.dtype) == 2 && d.head_dim % 32 == 0 && d.head_dim <= 256;
  // Sums and scores of more tokens do not fit a thread's registers.
  DecodeAttentionConfig c{.tile_kv = matrix && d.head_dim <= 192 ? 64 : 32};
  if (matrix) c.num_stages = decode_stages(heads_of_a_tile(d), c.tile_kv, d.head_dim, target.gpu());
  c.num_combiners = gpu_workers(heads, target.sms() / 4);
  std::int64_t most = (target.sms() - c.num_combiners) / blocks;
  c.splits = std::clamp<std::int64_t>(ceil_div(d.max_tokens, c.tile_kv), 1,
                                      std::max<std::int64_t>(most, 1));
  c.num_workers = gpu_workers(c.splits * blocks, target.sms() - c.num_combiners);
  return c;
}

}  // namespace stretto
