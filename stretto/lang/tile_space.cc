// Tile orders are index expressions of the linear tile number, so every reader sees the same order.
#include "stretto/base/errors.h"
#include "stretto/ir/tile_map.h"
#include "stretto/lang/program_builder.h"

namespace stretto {

TileSpace TileSpace::rotate_rows(const Index& rank) const {
  TileSpace s = *this;
  s.rotate_by_ = rank;
  return s;
}

TileSpace TileSpace::columns_first() const {
  TileSpace s = *this;
  s.order_ = Order::kColumns;
  return s;
}

TileSpace TileSpace::raster(std::int64_t rows) const {
  if (rows < 1) throw UserError("raster: a group has at least one row tile");
  TileSpace s = *this;
  s.group_ = rows;
  return s;
}

TileSpace TileSpace::rotate_from(const Index& first) const {
  TileSpace s = *this;
  s.first_ = first;
  return s;
}

TileSpace TileSpace::owned_by(const Index& rank) const {
  if (per_rank_ == 0) throw UserError("owned_by: a table-driven map has no fixed tiles per rank");
  TileSpace s = *this;
  s.first_ = rank;
  s.one_owner_ = true;
  s.count_ = per_rank_;
  return s;
}

Tile ProgramBuilder::make_tile(const TileSpace& s, const Index& linear) {
  Tile tile;
  tile.map = s.map_;
  if (s.map_ >= 0) {
    const TileMap& map = program_.maps[static_cast<std::size_t>(s.map_)];
    Index id = linear;
    if (s.one_owner_) {
      id = s.first_ * s.per_rank_ + linear;
    } else if (s.first_.has_value() && s.per_rank_ > 0) {
      id = (s.first_ + linear / s.per_rank_) % s.world_ * s.per_rank_ + linear % s.per_rank_;
    }
    tile.index = bind("tile", id);
    RowRange rows = tile_rows(program_, map, tile.index);
    tile.row = bind("row", rows.lo);
    tile.row_end = bind("row_end", rows.hi);
    tile.owner = bind("owner", tile_owner(program_, map, tile.index));
    if (!map.table_driven)
      tile.local_row = bind("local_row", tile.row - tile.owner * map.rows_per_rank);
    return tile;
  }
  tile.index = linear;
  if (!s.num_m_.has_value()) return tile;
  Index m, n;
  if (s.group_ > 1) {
    Index in_group = linear % (s.num_n_ * s.group_);
    Index first = linear / (s.num_n_ * s.group_) * s.group_;
    Index height = min(s.num_m_ - first, s.group_);
    m = first + in_group % height;
    n = in_group / height;
  } else if (s.order_ == TileSpace::Order::kColumns) {
    m = linear % s.num_m_;
    n = linear / s.num_m_;
  } else {
    m = linear / s.num_n_;
    n = linear % s.num_n_;
  }
  if (s.rotate_by_.has_value()) m = (m + s.rotate_by_ * s.num_m_ / s.world_) % s.num_m_;
  tile.m = bind("m", m);
  tile.n = bind("n", n);
  tile.row = tile.m * s.bm_;
  tile.col = tile.n * s.bn_;
  return tile;
}

}  // namespace stretto
