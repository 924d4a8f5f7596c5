// The three TileLink mappings as index expressions, exact by interval overlap for any shape: rows
// of a tile (f_S), its rank (f_R), its channel (f_C), and the channels that a range of rows
// touches. Shared by the language, which hands them to the user, and by the pass that resolves the
// tile primitives.
#pragma once

#include "stretto/ir/program.h"

namespace stretto {

struct RowRange {
  Expr lo, hi;  // [lo, hi), empty when hi <= lo
};

// Affine maps: constants of the extents' bounds, so that quotas do not depend on run-time sizes.
std::int64_t tiles_per_rank(const Program& program, const TileMap& map);
std::int64_t tiles_per_channel(const Program& program, const TileMap& map);
std::int64_t num_tiles(const Program& program, const TileMap& map);
std::int64_t num_channels(const Program& program, const TileMap& map);

// Whether one table bounds all tiles: its entries t and t + 1 those of tile t.
bool rows_are_partition(const Program& program, const TileMap& map);

// Rows and owners of table-driven maps read tables: bind them with a `let` before use. Their
// channels are the tiles.
RowRange tile_rows(const Program& program, const TileMap& map, const Expr& tile);
Expr tile_owner(const Program& program, const TileMap& map, const Expr& tile);
Expr tile_channel(const Program& program, const TileMap& map, const Expr& tile);
// Tiles that notify `channel` in one launch, empty ones included.
Expr channel_count(const Program& program, const TileMap& map, const Expr& channel);
// Affine maps only: first and one past the last channel whose rows overlap [lo, hi); empty for an
// empty range.
RowRange channels_of_rows(const Program& program, const TileMap& map, const Expr& lo,
                          const Expr& hi);

}  // namespace stretto
