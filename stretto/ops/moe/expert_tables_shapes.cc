#include <algorithm>

#include "stretto/ops/moe/even_routing.h"
#include "stretto/ops/moe/moe_shapes.h"

namespace stretto {

ExpertTablesDesc expert_tables_desc(const OpShape& s) {
  ExpertTablesDesc d{.tiles = {.shape = {.world_size = s.world_size,
                                         .m = s.m > 0 ? s.m : 64,
                                         .top_k = s.k > 0 ? s.k : 2,
                                         .num_experts = s.n > 0 ? s.n : 5}},
                     .order = {.stages = s.world_size}};
  d.tiles.tile_rows = 128;
  if (!s.test_config) return d;
  d.tiles.tile_rows = std::min<std::int64_t>(4, d.tiles.shape.m * d.tiles.shape.top_k);
  d.order.early_experts = 2;
  if (d.tiles.shape.top_k == 3) d.order = {.in_step = false};
  return d;
}

ExpertTablesConfig expert_tables_config(const ExpertTablesDesc& d, const OpShape& s) {
  ExpertTablesConfig c = default_config(d, s.target);
  if (!s.test_config || s.target == Target::kCuda) return c;
  c.block_tokens = std::min<std::int64_t>(c.block_tokens, 3);
  c.sort_rows = c.count_parts = c.sum_experts = 4;
  c.part_blocks = 2;
  c.tile_rows = 8;
  c.num_workers = 3;
  return c;
}

OperatorInfo expert_tables_info() {
  return {.name = "expert_tables",
          .summary = "tiles of one expert each for m tokens with k of n experts",
          .program =
              [](const OpShape& s) {
                return expert_tables(expert_tables_desc(s),
                                     expert_tables_config(expert_tables_desc(s), s));
              },
          .shapes = [](int world_size) -> std::vector<OpShape> {
            return with_test_configs({{.world_size = world_size, .m = 19, .n = 5, .k = 2},
                                      {.world_size = world_size, .m = 7, .n = 11, .k = 3},
                                      {.world_size = world_size, .m = 1, .n = 1, .k = 1}});
          },
          .large = {.m = 8192, .n = 60, .k = 4},
          .tables = [](const OpShape& s) { return even_routing(expert_tables_desc(s)); }};
}

}  // namespace stretto
