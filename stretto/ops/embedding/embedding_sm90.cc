#include <algorithm>

#include "stretto/ops/embedding/embedding.h"
#include "stretto/ops/gemm/linear.h"

namespace stretto {

VocabConfig default_config(const VocabDesc& d) {
  return {.tile_rows = std::min<std::int64_t>(16, d.m),
          .tile_vocab = std::min<std::int64_t>(512, vocab_per_rank(d))};
}

VocabConfig embedding_gpu_config(const VocabDesc& d, const GpuTarget& gpu) {
  constexpr std::int64_t kElements = 4096;  // of a tile, 16 a thread
  VocabConfig c{.tile_rows = std::clamp<std::int64_t>(kElements / d.hidden, 1, d.m)};
  c.num_workers = gpu_workers(ceil_div(d.m, c.tile_rows), gpu.sms / 2);
  return c;
}

VocabConfig lm_head_gpu_config(const VocabDesc& d, const GpuTarget& gpu) {
  std::int64_t share = vocab_per_rank(d);
  MainLoop loop = gpu_loop({.m = d.m,
                            .n = share,
                            .k = d.hidden,
                            .a_dtype = d.dtype,
                            .b_dtype = d.weight_dtype,
                            .num_sms = gpu.sms});
  // Where a tile is stored at every rank, 256 columns spill.
  if (d.world_size > 1) loop.tile.bn = std::min<std::int64_t>(loop.tile.bn, 128);
  std::int64_t tiles = ceil_div(d.m, loop.tile.bm) * ceil_div(share, loop.tile.bn);
  return {.tile_rows = loop.tile.bm,
          .tile_vocab = loop.tile.bn,
          .tile_k = loop.tile.bk,
          .num_stages = loop.num_stages,
          .num_workers = gpu_workers(tiles, gpu.sms)};
}

}  // namespace stretto
