// Tables of fused layers are those that expert_tiles.h makes by sorting.
#include <fmt/format.h>

#include <algorithm>

#include "stretto/ops/moe/even_routing.h"
#include "stretto/ops/moe/moe_shapes.h"
#include "stretto/testing/cases/cases.h"
#include "stretto/testing/cases/expert_tables_case.h"
#include "stretto/testing/cases/routing_case.h"

namespace stretto {
namespace {

Values as_values(const std::vector<std::int32_t>& from) { return {from.begin(), from.end()}; }

}  // namespace

OpCase expert_tables_case(const ExpertTablesDesc& d, const ExpertTablesConfig& config,
                          std::int64_t m, const std::vector<std::int32_t>& chosen) {
  MoeCase mc(expert_tables(d, config), d.tiles.shape.m, 0);
  mc.m = m;
  mc.c.extents = {m};
  mc.c.config = fmt::format("{} m={}", to_string(d), m);
  for (std::size_t r = 0; r < mc.c.inputs.size(); ++r) {
    std::copy(chosen.begin(), chosen.end(), mc.in(r, "experts").begin());
    TileTables tables = tile_tables(d.tiles, static_cast<int>(r), m, chosen, d.order);
    mc.out(r, "tiles_used") = {static_cast<double>(tables.used)};
    mc.out(r, "tile_experts") = as_values(tables.experts);
    mc.out(r, "tile_needs") = as_values(tables.needs);
    mc.out(r, "row_tokens") = as_values(tables.tokens);
    std::copy(tables.slots.begin(), tables.slots.end(), mc.out(r, "slots").begin());
  }
  return std::move(mc.c);
}

std::vector<OperatorCase> expert_tables_cases() {
  return {{"expert_tables", [](const OpShape& s, std::uint64_t seed) {
             ExpertTablesDesc d = expert_tables_desc(s);
             std::int64_t m =
                 s.rows.value_or(seed % 3 == 2 ? d.tiles.shape.m / 2 : d.tiles.shape.m);
             return expert_tables_case(d, expert_tables_config(d, s), m,
                                       chosen_experts(routed_tokens(d.tiles, m), seed));
           }}};
}

}  // namespace stretto
