#include "stretto/ops/moe/expert_tables.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "stretto/base/errors.h"
#include "stretto/ops/gemm/linear.h"
#include "stretto/ops/moe/table_maker.h"

namespace stretto {
namespace {

constexpr std::int64_t kMostPairs = std::int64_t{1} << 31;

}  // namespace

void check(const ExpertTablesDesc& d, const ExpertTablesConfig& c) {
  const ExpertTiles& t = d.tiles;
  check_sizes("expert_tables", {{"world_size", t.shape.world_size},
                                {"m", t.shape.m},
                                {"top_k", t.shape.top_k},
                                {"num_experts", t.shape.num_experts},
                                {"tile_rows", t.tile_rows},
                                {"stages", d.order.stages},
                                {"early_experts", d.order.early_experts},
                                {"block_tokens", c.block_tokens},
                                {"sort_rows", c.sort_rows},
                                {"part_blocks", c.part_blocks},
                                {"count_parts", c.count_parts},
                                {"sum_experts", c.sum_experts},
                                {"tile_rows", c.tile_rows},
                                {"num_workers", c.num_workers}});
  check_split("expert_tables", t.split());
  if (d.order.stages > t.shape.world_size) {
    throw UserError(fmt::format("expert_tables: stages is {}, at most one for each of {} ranks",
                                d.order.stages, t.shape.world_size));
  }
  // Pairs of a block are sorted by numbers of expert and pair.
  std::int64_t pairs = c.block_tokens * t.shape.top_k;
  if (pairs >= kMostPairs / (t.shape.num_experts + 1) || t.num_rows() >= kMostPairs) {
    throw UserError(fmt::format(
        "expert_tables: m is {} with {} of {} experts each, in blocks of {}: too many to number",
        t.shape.m, t.shape.top_k, t.shape.num_experts, c.block_tokens));
  }
}

NamedFields fields_of(ExpertTablesDesc& d) {
  return joined(fields_of(d.tiles), within("order", fields_of(d.order)));
}

std::string to_string(const ExpertTablesDesc& d) { return "expert_tables " + text_of(d); }

Program expert_tables(const ExpertTablesDesc& d, const ExpertTablesConfig& cfg) {
  check(d, cfg);
  ProgramBuilder p("expert_tables", d.tiles.shape.world_size);
  Index m = p.extent("m", d.tiles.shape.m), pairs = m * d.tiles.shape.top_k;
  auto output = [&](const char* name, std::vector<Index> shape) {
    return p.output(name, DType::kI32, std::move(shape));
  };
  MadeTables tables;
  tables.experts =
      p.table("experts", {pairs, 1}, {ContractKind::kRange, 0, d.tiles.shape.num_experts});
  tables.used = output("tiles_used", {1});
  tables.tile_experts = output("tile_experts", {d.tiles.num_tiles(), 1});
  tables.tile_needs = output("tile_needs", {d.tiles.num_tiles(), 1});
  tables.row_tokens = output("row_tokens", {d.tiles.num_rows(), 1});
  tables.slots = output("slots", {pairs, 1});
  TableMaker maker(p, d, cfg, m, tables);
  p.role("tables", Resource::sms(cfg.num_workers), p.range(maker.num_turns()),
         [&](const Tile& t) { maker.turn(t.index); });
  return p.finish();
}

NamedFields fields_of(ExpertTablesConfig& c) {
  return {{"block_tokens", c.block_tokens}, {"sort_rows", c.sort_rows},
          {"part_blocks", c.part_blocks},   {"count_parts", c.count_parts},
          {"sum_experts", c.sum_experts},   {"tile_rows", c.tile_rows},
          {"workers", c.num_workers}};
}

}  // namespace stretto
