#include "stretto/ops/moe/expert_tiles.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <tuple>

#include "stretto/ir/expr.h"

namespace stretto {
namespace {

struct Row {
  std::int64_t expert, position, token, pair;
};

struct PlannedTile {
  std::int64_t expert, needs;
  std::vector<Row> rows;
};

std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

}  // namespace

std::int64_t ExpertTiles::num_tiles() const {
  std::int64_t rows = m * top_k, with_rows = std::min(split().share(), rows);
  return (rows + with_rows * (tile_rows - 1)) / tile_rows;
}

std::string to_string(const TileOrder& order) {
  bool all = order.early_experts == TileOrder{}.early_experts;
  return fmt::format("{} classes{}", order.stages,
                     all ? "" : fmt::format(" of {} experts", order.early_experts));
}

TileOrder default_order(const ExpertTiles& t, Target target, std::int64_t ffn) {
  if (target == Target::kCpu) return {.stages = t.world_size};
  if (t.world_size == 1 || t.m * t.top_k <= t.num_experts * t.tile_rows) return {};
  // Tokens of two bytes an element at 350 GB/s, products at 600 TFLOP/s: columns by which a token
  // is multiplied while one travels; and twice that, since no rank begins at once.
  constexpr std::int64_t kColumns = 860, kMargin = 2;
  const std::int64_t columns = kMargin * kColumns * (t.world_size - 1), share = t.split().share();
  const std::int64_t own = ffn > 0 ? ffn * t.top_k : 4 * columns / (t.world_size - 1);
  const std::int64_t early = ceil_div(share * columns, own);
  if (early >= share) return {.stages = t.world_size};  // all; such tables take fewer registers
  return {.stages = t.world_size, .early_experts = early};
}

TileTables tile_tables(const ExpertTiles& t, int rank, std::int64_t m,
                       const std::vector<std::int32_t>& chosen, const TileOrder& order) {
  std::int64_t share = ceil_div(m, std::int64_t{t.world_size});
  std::int64_t first = t.split().first(rank), end = t.split().end(rank);
  std::vector<Row> rows;
  for (std::int64_t pair = 0; pair < m * t.top_k; ++pair) {
    std::int64_t expert = chosen[at(pair)], token = pair / t.top_k;
    if (expert < first || expert >= end) continue;
    std::int64_t position = (token / share + t.world_size - rank) % t.world_size;
    rows.push_back({expert - first, position, position * share + token % share, pair});
  }
  std::stable_sort(rows.begin(), rows.end(), [](const Row& a, const Row& b) {
    return std::tie(a.expert, a.token) < std::tie(b.expert, b.token);
  });
  std::vector<PlannedTile> planned;
  for (const Row& row : rows) {
    bool fits = !planned.empty() && planned.back().expert == row.expert &&
                planned.back().rows.size() < at(t.tile_rows);
    if (!fits) planned.push_back({.expert = row.expert, .needs = 0, .rows = {}});
    planned.back().needs = row.position + 1;
    planned.back().rows.push_back(row);
  }
  auto stage = [&](const PlannedTile& p) {
    std::int64_t stages = order.stages;
    if (p.expert >= order.early_experts) return stages - 1;
    return (p.needs - 1) * stages / t.world_size;
  };
  std::stable_sort(planned.begin(), planned.end(),
                   [&](const PlannedTile& a, const PlannedTile& b) { return stage(a) < stage(b); });
  TileTables out;
  out.used = static_cast<std::int32_t>(planned.size());
  out.experts.assign(at(t.num_tiles()), 0);
  out.needs.assign(at(t.num_tiles()), 0);
  out.tokens.assign(at(t.num_rows()), -1);
  out.slots.assign(at(m * t.top_k), -1);
  for (std::size_t i = 0; i < planned.size(); ++i) {
    out.experts.at(i) = static_cast<std::int32_t>(planned[i].expert);
    out.needs.at(i) = static_cast<std::int32_t>(planned[i].needs);
    std::size_t next = i * at(t.tile_rows);
    for (const Row& row : planned[i].rows) {
      out.slots[at(row.pair)] = static_cast<std::int32_t>(next);
      out.tokens[next++] = static_cast<std::int32_t>(row.token);
    }
  }
  return out;
}

}  // namespace stretto
