// The plain fp64 reference of a mixture of experts spread over groups of ranks: one product per
// token and expert, on a rank that has it.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "stretto/ops/moe/ep_moe_layer.h"
#include "stretto/ops/moe/even_routing.h"
#include "stretto/ops/moe/moe_shapes.h"
#include "stretto/testing/cases/cases.h"
#include "stretto/testing/cases/routing_case.h"
#include "stretto/testing/cases/tp_case.h"

namespace stretto {
namespace {

// What the own tokens hear of: rows of ranks with an expert of theirs, where they do.
void expect_sent(const EpMoeLayerDesc& d, MoeCase& mc, const std::vector<std::int32_t>& chosen) {
  mc.c.exact = {"a"};
  const ExpertSplit split = d.split();
  const std::size_t ranks = mc.c.inputs.size(), k = at(d.hidden);
  const std::size_t share = at(ceil_div(mc.m, std::int64_t{d.shape.world_size}));
  for (std::size_t pair = 0; pair < chosen.size(); ++pair) {
    std::size_t token = pair / at(d.shape.top_k), from = token / share;
    for (std::size_t to = 0; to < ranks; ++to) {
      auto rank = static_cast<int>(to);
      if (to == from || chosen[pair] < split.first(rank) || chosen[pair] >= split.end(rank))
        continue;
      std::size_t row = (from + ranks - to) % ranks * share + token % share;
      auto x = mc.in(from, "a").begin() + static_cast<std::ptrdiff_t>(token % share * k);
      std::copy_n(x, k, mc.out(to, "a").begin() + static_cast<std::ptrdiff_t>(row * k));
    }
  }
}

OpCase ep_moe_layer_case(const OpShape& s, std::uint64_t seed) {
  const EpMoeLayerDesc d = ep_moe_layer_desc(s);
  const EpMoeLayerConfig cfg = ep_moe_layer_config(d, s);
  MoeCase mc(ep_moe_layer(d, cfg), d.shape.m, seed, s.rows);
  mc.c.config = fmt::format("{} | {} | m={}", to_string(d), to_string(cfg), mc.m);
  mc.c.tolerance = sum_tolerance(d.dtype, d.ffn) + 2 * sum_tolerance(d.dtype, d.hidden);
  const double ffn = static_cast<double>(d.ffn), hidden = static_cast<double>(d.hidden);
  const std::vector<std::int32_t> chosen =
      chosen_experts(routed_tokens(tiles_of(d, cfg), mc.m), seed);
  const std::size_t ranks = mc.c.inputs.size(), k = at(d.hidden), top_k = at(d.shape.top_k);
  const std::size_t share = at(ceil_div(mc.m, std::int64_t{d.shape.world_size}));
  mc.c.flops = 6.0 * static_cast<double>(chosen.size()) * hidden * ffn * d.shape.world_size /
               d.expert_groups;
  mc.c.comm_bytes = 2.0 * static_cast<double>((ranks - 1) * share * k * size_bytes(d.dtype));
  expect_sent(d, mc, chosen);
  for (std::size_t r = 0; r < ranks; ++r) {
    Values& experts = mc.in(r, "experts");
    std::fill(experts.begin(), experts.end(), 0.0);
    std::size_t first = std::min(r * share * top_k, chosen.size());
    std::size_t end = std::min(first + share * top_k, chosen.size());
    for (std::size_t i = first; i < end; ++i) experts[i - first] = chosen[i];
  }
  BothLayers layers(mc, own_part(d));
  std::vector<Values>& scales = mc.c.scales["products"];
  for (std::size_t r = 0; r < ranks; ++r) {
    auto rank = static_cast<int>(r);
    // Of tiles without rows nothing is stored.
    const ExpertTiles tiles = tiles_of(d, cfg);
    const TileTables tables = tile_tables(tiles, rank, mc.m, chosen, cfg.order);
    Values& products = mc.out(r, "products");
    std::fill_n(products.begin(), at(tables.used * tiles.tile_rows) * k, kUnchecked);
    scales.emplace_back(products.size(), 0.0);
    for (std::size_t pair = 0; pair < chosen.size(); ++pair) {
      std::int64_t own = chosen[pair] - d.split().first(rank);
      if (own < 0 || chosen[pair] >= d.split().end(rank)) continue;
      std::size_t token = pair / top_k;
      double weight = mc.in(token / share, "weights")[pair - token / share * share * top_k];
      Values result = layers.of({.rank = r, .token = token, .share = share, .expert = at(own)});
      layers.add(result, weight, token);
      auto row = static_cast<std::ptrdiff_t>(at(tables.slots[pair]) * k);
      std::ranges::copy(result, products.begin() + row);
      std::fill_n(scales[r].begin() + row, k, BothLayers::scale(result));
    }
  }
  layers.expect(share, d.residual);
  return std::move(mc.c);
}

}  // namespace

std::vector<OperatorCase> ep_moe_cases() { return {{"ep_moe_layer", ep_moe_layer_case}}; }

}  // namespace stretto
