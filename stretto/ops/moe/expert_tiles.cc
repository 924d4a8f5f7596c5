#include "stretto/ops/moe/expert_tiles.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <tuple>

#include "stretto/base/at.h"
#include "stretto/ir/expr.h"

namespace stretto {
namespace {

struct Row {
  std::int64_t expert, position, token, pair;
};

struct PlannedTile {
  std::int64_t expert, stage, last_position;
  std::vector<Row> rows;
};

}  // namespace

std::int64_t ExpertTiles::num_tiles() const {
  std::int64_t rows = shape.m * shape.top_k, with_rows = std::min(split().share(), rows);
  return (rows + with_rows * (tile_rows - 1)) / tile_rows;
}

NamedFields fields_of(ExpertTiles& t) {
  return joined(fields_of(t.shape),
                {NamedField("expert_groups", t.expert_groups, 1).as("in {} groups"),
                 NamedField("tile_rows", t.tile_rows).as("in tiles of {}")});
}

NamedFields fields_of(ExpertTileOrder& c) {
  return {{"classes", c.stages},
          {"early_experts", c.early_experts, ExpertTileOrder{}.early_experts},
          NamedField("in_step", c.in_step).unless_set("apart")};
}

std::int64_t ranks_through(const ExpertTiles& tiles, const ExpertTileOrder& order,
                           std::int64_t stage) {
  return ceil_div((stage + 1) * tiles.shape.world_size, std::int64_t{order.stages});
}

TileTables tile_tables(const ExpertTiles& t, int rank, std::int64_t m,
                       const std::vector<std::int32_t>& chosen, const ExpertTileOrder& order) {
  std::int64_t share = ceil_div(m, std::int64_t{t.shape.world_size});
  std::int64_t first = t.split().first(rank), end = t.split().end(rank);
  std::vector<Row> rows;
  for (std::int64_t pair = 0; pair < m * t.shape.top_k; ++pair) {
    std::int64_t expert = chosen[at(pair)], token = pair / t.shape.top_k;
    if (expert < first || expert >= end) continue;
    std::int64_t position = (token / share + t.shape.world_size - rank) % t.shape.world_size;
    rows.push_back({expert - first, position, position * share + token % share, pair});
  }
  std::stable_sort(rows.begin(), rows.end(), [](const Row& a, const Row& b) {
    return std::tie(a.expert, a.token) < std::tie(b.expert, b.token);
  });
  std::vector<PlannedTile> planned;
  for (const Row& row : rows) {
    bool fits = !planned.empty() && planned.back().expert == row.expert &&
                planned.back().rows.size() < at(t.tile_rows);
    if (!fits) planned.push_back({row.expert, 0, 0, {}});
    PlannedTile& tile = planned.back();
    bool early = row.expert < order.early_experts;
    tile.stage = early ? row.position * order.stages / t.shape.world_size : order.stages - 1;
    tile.last_position = row.position;
    tile.rows.push_back(row);
  }
  std::stable_sort(planned.begin(), planned.end(),
                   [](const PlannedTile& a, const PlannedTile& b) { return a.stage < b.stage; });
  TileTables out;
  out.used = static_cast<std::int32_t>(planned.size());
  out.experts.assign(at(t.num_tiles()), 0);
  out.needs.assign(at(t.num_tiles()), 0);
  out.tokens.assign(at(t.num_rows()), -1);
  out.slots.assign(at(m * t.shape.top_k), -1);
  for (std::size_t i = 0; i < planned.size(); ++i) {
    const PlannedTile& tile = planned[i];
    out.experts.at(i) = static_cast<std::int32_t>(tile.expert);
    out.needs.at(i) = static_cast<std::int32_t>(order.in_step ? ranks_through(t, order, tile.stage)
                                                              : tile.last_position + 1);
    std::size_t next = i * at(t.tile_rows);
    for (const Row& row : tile.rows) {
      out.slots[at(row.pair)] = static_cast<std::int32_t>(next);
      out.tokens[next++] = static_cast<std::int32_t>(row.token);
    }
  }
  return out;
}

}  // namespace stretto
