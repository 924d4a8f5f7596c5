// A mixture of experts' rows in tiles of one expert each, for layers where every rank holds a part
// of every expert, or of its group's experts: how many tiles there can be, and the tables by which
// ag_grouped_gemm.h and grouped_gemm_rs.h find their way. An expert's rows are sorted by the rank
// that their token comes from, the own rank first, so that a tile has few ranks' rows. Tiles are
// sorted by how many, in classes, so that those of own rows are done while others travel.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "stretto/ops/moe/expert_shape.h"
#include "stretto/ops/moe/expert_split.h"
#include "stretto/ops/operator/named_fields.h"
#include "stretto/ops/operator/target.h"

namespace stretto {

struct ExpertTiles {
  ExpertShape shape;
  std::int64_t tile_rows = 1;
  int expert_groups = 1;  // expert_split.h; a rank has tiles of its group's experts alone

  ExpertSplit split() const { return {shape.num_experts, shape.world_size, expert_groups}; }
  // Whatever the routing: every expert with rows may have a tile that is not full.
  std::int64_t num_tiles() const;
  std::int64_t num_rows() const { return num_tiles() * tile_rows; }
  friend bool operator==(const ExpertTiles&, const ExpertTiles&) = default;
};

// In which order the tiles of a rank come: in classes, in each by expert. Classes are by the last
// rank that a tile has rows of, `stages` of nearly as many ranks each (1: one class), so that those
// of the own rows are done while others travel; an expert's weights are read once for each class.
// So only the first `early_experts` have tiles in all of them, as many as fill the time of the
// transfers: all tiles of the others come with the last class.
struct ExpertTileOrder {
  int stages = 1;
  std::int64_t early_experts = std::numeric_limits<std::int32_t>::max();
  // All tiles of a class wait for the same ranks, so that workers that share weights and rows begin
  // together and stay in step. Where each waits for its own rows, workers stay apart to the end,
  // and read weights again that L2 no longer has (docs/performance/moe.md, 'Why the defaults are
  // what they are').
  bool in_step = true;
  friend bool operator==(const ExpertTileOrder&, const ExpertTileOrder&) = default;
};
NamedFields fields_of(ExpertTileOrder& order);
NamedFields fields_of(ExpertTiles& tiles);
// For how many ranks, from the own one on, tiles of class `stage` wait.
std::int64_t ranks_through(const ExpertTiles& tiles, const ExpertTileOrder& order,
                           std::int64_t stage);
// The sizes of a layer whose tiles these are; 0: not known.
struct LayerSizes {
  // The columns of gate and up, each, by which a rank multiplies a token for each of its experts,
  // on average.
  std::int64_t ffn = 0;
  std::int64_t hidden = 0;  // where the first layer is by itself, which may push tokens
};
// A class for each rank, of as many experts as keep a rank busy while tokens travel, at least four
// and enough for a tile of the own rows on most SMs; fewer where an expert has so few rows of a
// rank's tokens that reading its weights takes longer than multiplying them, so that every class
// would cost more than the wait. With groups of experts each tile is by itself.
ExpertTileOrder order_in_classes(const ExpertTiles& tiles, const GpuTarget& gpu,
                                 const LayerSizes& sizes = {});
// That, on GPUs; there one class where tokens are pushed, which come together; each tile by itself,
// too, where the rows of an expert fill no tile, since its weights take the time, and for groups of
// experts (ep_moe_layer.h), whose tokens are sent before anything is multiplied.
ExpertTileOrder default_order(const ExpertTiles& tiles, Target target,
                              const LayerSizes& sizes = {});
// Whether a rank's tokens are so few that those who multiply push them before anything else
// (ag_grouped_gemm.h), on GPUs.
bool are_pushed(const ExpertTiles& tiles, std::int64_t hidden);

// The tables of one rank.
struct TileTables {
  std::int32_t used = 0;  // tiles with rows, which come first
  // [num_tiles] of each tile, counted from its group's first; 0 of tiles without rows.
  std::vector<std::int32_t> experts;
  // [num_tiles] ranks that a tile waits for, counted from the own one on: 1..P; 0 of tiles without
  // rows.
  std::vector<std::int32_t> needs;
  // [num_rows] the token of each row, as it lies in ag_grouped_gemm's `a`; -1 of rows without one,
  // which are a tile's last.
  std::vector<std::int32_t> tokens;
  // [m, top_k] the row of a token and one of its experts; -1 where that is another group's.
  std::vector<std::int32_t> slots;
};

// A launch of m tokens, whose experts are `chosen` [m, top_k].
TileTables tile_tables(const ExpertTiles& tiles, int rank, std::int64_t m,
                       const std::vector<std::int32_t>& chosen, const ExpertTileOrder& order);

}  // namespace stretto
