// The tables of expert_tiles.h from the experts of all ranks' tokens, on the device: blocks of
// tokens of one rank are sorted by expert, then each adds up what the others have of every expert,
// which places its own, then every row looks its token up. A token of two equal experts has two
// rows, in the order of its choices.
#pragma once

#include <string>

#include "stretto/ir/program.h"
#include "stretto/ops/moe/expert_tiles.h"
#include "stretto/ops/operator/named_fields.h"
#include "stretto/ops/operator/operator.h"

namespace stretto {

struct ExpertTablesDesc {
  ExpertTiles tiles;
  ExpertTileOrder order;  // at most P stages
  friend bool operator==(const ExpertTablesDesc&, const ExpertTablesDesc&) = default;
};

struct ExpertTablesConfig {
  std::int64_t block_tokens = 64;  // one rank's, sorted at a time
  std::int64_t sort_rows = 64;     // their pairs with experts that are compared with all at a time
  std::int64_t part_blocks = 1;    // that a worker takes one after the other
  std::int64_t count_parts = 64;   // whose counts are added at a time
  std::int64_t sum_experts = 64;   // whose tiles are added for those behind them at a time
  std::int64_t tile_rows = 64;     // whose token is looked up at a time
  int num_workers = 1;
  friend bool operator==(const ExpertTablesConfig&, const ExpertTablesConfig&) = default;
};
NamedFields fields_of(ExpertTablesConfig& config);

NamedFields fields_of(ExpertTablesDesc& desc);
std::string to_string(const ExpertTablesDesc& desc);
ExpertTablesConfig default_config(const ExpertTablesDesc& desc, Target target = Target::kCpu,
                                  int most_workers = 0);

// Extent m, of all ranks' tokens; T and R the tiles and rows of desc.tiles. Table experts [m *
// top_k, 1] i32 in 0..E-1, those of every token one after the other, by rank. Outputs, i32, of the
// own rank: tiles_used [1], tile_experts [T, 1], tile_needs [T, 1], row_tokens [R, 1] and slots [m
// * top_k, 1], what tile_tables() gives, in the order in which ag_grouped_gemm.h, grouped_gemm_rs.h
// and moe_layer.h read them. No rank waits for another. UserError naming the field of a bad desc or
// config; at a launch, the entry that names an expert that does not exist.
Program expert_tables(const ExpertTablesDesc& desc, const ExpertTablesConfig& config);

// m: tokens of all ranks, n: experts, k: of which each token has this many.
OperatorInfo expert_tables_info();

}  // namespace stretto
