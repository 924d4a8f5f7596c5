// c = f(all_gather(a)[tokens] * b[expert of the tile]^T): a mixture of experts' first layer, where
// every rank holds a part of every expert. Copy engines send each rank's tokens to the others
// while it multiplies its own, or few tokens are pushed before. A tile waits for the ranks that its
// table says: those of its class, or of its own rows alone (expert_tiles.h,
// ExpertTileOrder::in_step).
#pragma once

#include <cstdint>
#include <string>

#include "stretto/ir/program.h"
#include "stretto/ops/gemm/linear.h"
#include "stretto/ops/moe/expert_shape.h"
#include "stretto/ops/moe/expert_tiles.h"
#include "stretto/ops/moe/gated_unit.h"
#include "stretto/ops/operator/named_fields.h"
#include "stretto/ops/operator/operator.h"

namespace stretto {

struct AgGroupedDesc {
  ExpertShape shape;
  std::int64_t n = 1, k = 1;  // columns on this rank, hidden size
  DType a_dtype = DType::kF32, b_dtype = DType::kF32, c_dtype = DType::kF32;
  bool swiglu = false;  // f(a * b_gate^T, a * b_up^T)
  GatedUnit gate;       // that f
  bool bias = false;    // + bias[expert], of each product
  bool gathers = true;  // false: `a` has all tokens at the launch, every rank is by itself

  friend bool operator==(const AgGroupedDesc&, const AgGroupedDesc&) = default;
};

struct AgGroupedConfig {
  MainLoop loop;               // tile.bm: tile_rows of the tables
  int num_copy_queues = 1;     // that send; 0: those who multiply push the own tokens first
  std::int64_t comm_rows = 1;  // rows of one transfer
  // What is copied at a time, by threads beside those that multiply, into the order of the tiles,
  // which take memory of their own; 0: the product picks the rows where they lie.
  std::int64_t sort_rows = 0, sort_cols = 0;
  // The second half of a tile is not multiplied where it holds no token, in loops of more than one
  // step (of one, the assembler would serialise products). Tokens are a tile's first rows then
  // (tile_tables and expert_tables make them so).
  bool skip_dead_rows = false;
  friend bool operator==(const AgGroupedConfig&, const AgGroupedConfig&) = default;
};
NamedFields fields_of(AgGroupedConfig& config);

// On GPUs: what three warps hold of a copy, of 256 columns by 16 bytes a thread.
inline constexpr std::int64_t kSortRows = 48, kSortCols = 256;

ExpertTiles tiles_of(const AgGroupedDesc& desc, const AgGroupedConfig& config);
NamedFields fields_of(AgGroupedDesc& desc);
std::string to_string(const AgGroupedDesc& desc);
AgGroupedConfig default_config(const AgGroupedDesc& desc, Target target = Target::kCpu);
// Own tokens go by copy engines in so many queues; 0: by those who multiply, sooner where they are
// few.
void send_by(const AgGroupedDesc& desc, int num_queues, AgGroupedConfig& config);

// Extent m; S = ceil(m / P), T and R the tiles and rows of tiles_of. Symmetric state a [P * S, k]:
// rows 0..S-1 hold the own tokens, a launch fills those from i * S on with the tokens of rank
// (rank + i) % P; without gathering it is an input. Tables of the own rank (expert_tiles.h):
// tiles_used [1] i32 in 0..T, tile_experts [T, 1] i32 in 0..E-1, tile_needs [T, 1] i32 in 0..P,
// row_tokens [R, 1] i32 in -1..P*S-1; tokens of ranks past what the tile needs read as zero. Input
// b [num_experts, n, k] (swiglu: b_gate and b_up), each rank's own, and with bias [num_experts, n]
// (bias_gate and bias_up) of c_dtype. Output c [R, n]; rows without a token are as for a token of
// zeros, or 0 in tiles without any. Accumulated in fp32, rounded once. UserError naming the
// field of a bad desc or config; at a launch, the table and entry that break their contract. After
// COMET (arXiv 2502.19811, section 3): layer 0 decomposed along tokens.
Program ag_grouped_gemm(const AgGroupedDesc& desc, const AgGroupedConfig& config);

// m: tokens of all ranks with two of 5 experts each, n: columns of c, k: hidden size; even m:
// swiglu.
OperatorInfo ag_grouped_gemm_info();

}  // namespace stretto
