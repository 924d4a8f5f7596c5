#include "stretto/ir/tile_map.h"

#include "stretto/base/errors.h"

namespace stretto {
namespace {

std::int64_t at_bounds(const Program& program, const Expr& expr) {
  return eval(expr, initial_vars(program, 0, extent_bounds(program)));
}

Expr num_rows(const Program& program, const TileMap& map) {
  return program.tensors[static_cast<std::size_t>(map.tensor)].shape[0];
}

}  // namespace

bool rows_are_partition(const Program& program, const TileMap& map) {
  return map.table_driven && map.low == map.high &&
         program.tensors[static_cast<std::size_t>(map.low)].contract.kind ==
             ContractKind::kPartition;
}

std::int64_t tiles_per_rank(const Program& program, const TileMap& map) {
  STRETTO_CHECK(!map.table_driven, "a table-driven map has no fixed number of tiles per rank");
  return ceil_div(at_bounds(program, map.rows_per_rank), map.tile_rows);
}

std::int64_t tiles_per_channel(const Program& program, const TileMap& map) {
  return ceil_div(tiles_per_rank(program, map), map.channels_per_rank);
}

std::int64_t num_tiles(const Program& program, const TileMap& map) {
  return map.table_driven ? map.num_tiles : tiles_per_rank(program, map) * program.world_size;
}

std::int64_t num_channels(const Program& program, const TileMap& map) {
  return map.table_driven ? map.num_tiles : map.channels_per_rank * program.world_size;
}

RowRange tile_rows(const Program& program, const TileMap& map, const Expr& tile) {
  if (map.table_driven) {
    return {Expr::table(map.low, {tile}),
            Expr::table(map.high, {rows_are_partition(program, map) ? tile + 1 : tile})};
  }
  Expr per_rank = tiles_per_rank(program, map);
  Expr owner = tile / per_rank;
  Expr lo = owner * map.rows_per_rank + (tile % per_rank) * map.tile_rows;
  Expr end = min((owner + 1) * map.rows_per_rank, num_rows(program, map));
  return {lo, min(lo + map.tile_rows, end)};
}

Expr tile_owner(const Program& program, const TileMap& map, const Expr& tile) {
  if (map.table_driven) return Expr::table(map.rank, {tile});
  return tile / Expr(tiles_per_rank(program, map));
}

Expr tile_channel(const Program& program, const TileMap& map, const Expr& tile) {
  if (map.table_driven) return tile;
  Expr per_rank = tiles_per_rank(program, map);
  return tile / per_rank * map.channels_per_rank +
         tile % per_rank / tiles_per_channel(program, map);
}

Expr channel_count(const Program& program, const TileMap& map, const Expr& channel) {
  if (map.table_driven) return 1;
  Expr per_channel = tiles_per_channel(program, map);
  Expr first = channel % map.channels_per_rank * per_channel;
  return max(min(per_channel, Expr(tiles_per_rank(program, map)) - first), 0);
}

RowRange channels_of_rows(const Program& program, const TileMap& map, const Expr& lo,
                          const Expr& hi) {
  STRETTO_CHECK(!map.table_driven, "channels of a row range need an affine map");
  Expr rows_per_channel = tiles_per_channel(program, map) * map.tile_rows;
  auto channel_of = [&](const Expr& row) {
    return row / map.rows_per_rank * map.channels_per_rank +
           row % map.rows_per_rank / rows_per_channel;
  };
  Expr last = min(hi, num_rows(program, map)) - 1;
  Expr first = channel_of(lo);
  return {first, select(lo <= last, channel_of(last) + 1, first)};
}

}  // namespace stretto
