#include <algorithm>

#include "stretto/ops/collectives/uneven.h"

namespace stretto {

// As many SMs as fill NVLink when they fetch, and then some: rows may be few for the room. Tiles
// are so many that a worker has a few, and hardly more than one of them is of several ranks.
UnevenConfig default_config(const UnevenDesc& d, Target target) {
  UnevenConfig c;
  if (target == Target::kCpu) {
    constexpr std::int64_t kTiles = 32;  // of a worker at most, which the proof looks at one by one
    c.tile_rows = std::min(std::max(c.tile_rows, ceil_div(d.room, kTiles)), d.room);
    return c;
  }
  constexpr std::int64_t kBytesPerThread = 64, kSmall = 8192, kTurns = 4, kMostTile = 1024 * 1024;
  const int most = std::max(target.sms() / 2, 1);
  c.threads = d.room <= most * kSmall / std::max(d.n, std::int64_t{1}) ? 256 : 512;
  std::int64_t piece = kBytesPerThread / static_cast<std::int64_t>(size_bytes(d.dtype)) * c.threads;
  c.piece_cols = std::min(d.n, piece);
  c.piece_rows = std::clamp<std::int64_t>(piece / c.piece_cols, 1, d.room);
  std::int64_t rows = ceil_div(d.room, most * kTurns);
  rows = std::min(rows, std::max(kMostTile / d.n, std::int64_t{1}));
  c.tile_rows = ceil_div(rows, c.piece_rows) * c.piece_rows;
  c.num_workers = gpu_workers(ceil_div(d.room, c.tile_rows), most);
  return c;
}

}  // namespace stretto
