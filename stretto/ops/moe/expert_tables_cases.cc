// Tables of fused layers are those that expert_tiles.h makes by sorting.
#include <fmt/format.h>

#include <algorithm>

#include "stretto/ops/moe/even_routing.h"
#include "stretto/ops/moe/expert_tables_case.h"
#include "stretto/ops/moe/routing_case.h"

namespace stretto {
namespace {

ExpertTablesDesc desc_of(const OpShape& s) {
  ExpertTablesDesc d{.tiles = {.world_size = s.world_size,
                               .m = s.m > 0 ? s.m : 64,
                               .top_k = s.k > 0 ? s.k : 2,
                               .num_experts = s.n > 0 ? s.n : 5},
                     .order = {.stages = s.world_size}};
  d.tiles.tile_rows = 128;
  if (!s.test_config) return d;
  d.tiles.tile_rows = std::min<std::int64_t>(4, d.tiles.m * d.tiles.top_k);
  d.order.early_experts = 2;
  if (d.tiles.top_k == 3) d.order = {.in_step = false};
  return d;
}

ExpertTablesConfig config_of(const ExpertTablesDesc& d, const OpShape& s) {
  ExpertTablesConfig c = default_config(d, s.target);
  if (!s.test_config || s.target == Target::kCuda) return c;
  c.block_tokens = std::min<std::int64_t>(c.block_tokens, 3);
  c.sort_rows = c.count_parts = c.sum_experts = 4;
  c.part_blocks = 2;
  c.tile_rows = 8;
  c.num_workers = 3;
  return c;
}

Values as_values(const std::vector<std::int32_t>& from) { return {from.begin(), from.end()}; }

}  // namespace

OpCase expert_tables_case(const ExpertTablesDesc& d, const ExpertTablesConfig& config,
                          std::int64_t m, const std::vector<std::int32_t>& chosen) {
  MoeCase mc(expert_tables(d, config), d.tiles.m, 0);
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

OperatorInfo expert_tables_info() {
  auto make_case = [](const OpShape& s, std::uint64_t seed) {
    ExpertTablesDesc d = desc_of(s);
    std::int64_t m = s.rows.value_or(seed % 3 == 2 ? d.tiles.m / 2 : d.tiles.m);
    return expert_tables_case(d, config_of(d, s), m,
                              chosen_experts(routed_tokens(d.tiles, m), seed));
  };
  return {.name = "expert_tables",
          .summary = "tiles of one expert each for m tokens with k of n experts",
          .program =
              [](const OpShape& s) { return expert_tables(desc_of(s), config_of(desc_of(s), s)); },
          .make_case = make_case,
          .shapes = [](int world_size) -> std::vector<OpShape> {
            return with_test_configs({{.world_size = world_size, .m = 19, .n = 5, .k = 2},
                                      {.world_size = world_size, .m = 7, .n = 11, .k = 3},
                                      {.world_size = world_size, .m = 1, .n = 1, .k = 1}});
          },
          .large = {.m = 8192, .n = 60, .k = 4},
          .tables = [](const OpShape& s) { return even_routing(desc_of(s)); }};
}

}  // namespace stretto
