#include "bench/gpu/experts/padding.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "bench/gpu/experts/moe_shapes.h"
#include "stretto/base/errors.h"

namespace stretto::bench {
namespace {

// Rows that are multiplied for each that holds a token.
struct Padding {
  double tiles = 0;   // all of every tile
  double halves = 0;  // without second halves that hold none
};

Padding padding_of(const ExpertTiles& tiles, const ExpertTileOrder& order,
                   const std::vector<std::int32_t>& chosen) {
  TileTables tables = tile_tables(tiles, 0, tiles.shape.m, chosen, order);
  std::int64_t rows = 0, halves = 0;
  for (std::int64_t tile = 0; tile < tables.used; ++tile) {
    std::int64_t half = tiles.tile_rows / 2, middle = tile * tiles.tile_rows + half;
    bool full = tables.tokens[static_cast<std::size_t>(middle)] >= 0;
    rows += tiles.tile_rows;
    halves += full ? tiles.tile_rows : half;
  }
  auto held = static_cast<double>(chosen.size());
  return {static_cast<double>(rows) / held, static_cast<double>(halves) / held};
}

Padding mean_padding(const MoeShape& s, const PaddingOptions& o) {
  ExpertTiles tiles{.shape = {.world_size = o.world_size,
                              .m = s.m,
                              .top_k = s.top_k,
                              .num_experts = s.num_experts},
                    .tile_rows = o.tile_rows};
  Padding sum;
  for (int i = 0; i < o.routings; ++i) {
    std::uint64_t seed = o.seed + static_cast<std::uint64_t>(i);
    Padding one = padding_of(tiles, {.stages = o.classes}, random_experts(s, seed));
    sum.tiles += one.tiles / o.routings;
    sum.halves += one.halves / o.routings;
  }
  return sum;
}

}  // namespace

std::string padding_table(const PaddingOptions& o) {
  if (o.classes > o.world_size) {
    throw UserError(
        fmt::format("padding: {} classes are more than the {} ranks", o.classes, o.world_size));
  }
  std::vector<MoeShape> models;
  for (const MoeShape& s : moe_shapes(o.world_size, /*quick=*/true)) {
    bool known = std::any_of(models.begin(), models.end(),
                             [&](const MoeShape& other) { return other.model == s.model; });
    if (!known) models.push_back(s);
  }
  std::string head = "| tokens |", line = "|---|", out;
  for (const MoeShape& s : models) {
    head += fmt::format(" {}, top {} of {} |", s.model, s.top_k, s.num_experts);
    line += "---|";
  }
  out = head + "\n" + line + "\n";
  for (std::int64_t tokens : {2048, 4096, 8192, 16384}) {
    out += fmt::format("| {},{:03} |", tokens / 1000, tokens % 1000);
    for (MoeShape s : models) {
      s.m = tokens;
      Padding p = mean_padding(s, o);
      out += fmt::format(" {:.2f} ({:.2f}) |", p.tiles, p.halves);
    }
    out += "\n";
  }
  return out;
}

}  // namespace stretto::bench
