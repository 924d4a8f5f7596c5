// out = reduce_scatter(weighted sums over each token's experts of a * b[expert]^T): a mixture of
// experts' second layer, where every rank holds a part of every expert. Products are made in
// blocks of columns over all experts, since a token's rows lie far apart; a block that is done is
// summed and sent while the next is multiplied, by SMs of their own or by those that multiply.
#pragma once

#include <cstdint>
#include <string>

#include "stretto/ir/program.h"
#include "stretto/ops/gemm/linear.h"
#include "stretto/ops/moe/expert_shape.h"
#include "stretto/ops/moe/expert_tiles.h"
#include "stretto/ops/operator/named_fields.h"
#include "stretto/ops/operator/operator.h"

namespace stretto {

struct GroupedRsDesc {
  ExpertShape shape;
  std::int64_t n = 1, k = 1;  // hidden size, columns of the first layer on this rank
  DType a_dtype = DType::kF32, b_dtype = DType::kF32, out_dtype = DType::kF32;
  bool residual = false;
  bool all_reduce = false;  // every rank gets the sums of all tokens
  // + bias[expert] of a product, added by the first of each so many consecutive ranks, which have
  // parts of the same experts; 0: nobody adds any.
  int bias_ranks = 0;

  friend bool operator==(const GroupedRsDesc&, const GroupedRsDesc&) = default;
};

struct GroupedRsConfig {
  MainLoop loop;                   // tile.bm: tile_rows of the tables
  int num_products = 1;            // side by side, that share out the columns of a tile
  std::int64_t block_tiles = 1;    // column tiles of a block
  int num_reduce_sms = 1;          // 0: a group of threads more on each SM that multiplies
  int num_reduce_stages = 0;       // on SMs of their own: tiles of rows that are loaded ahead
  std::int64_t reduce_rows = 1;    // tokens summed at a time
  std::int64_t reduce_cols = 1;    // their columns; divides those of a block
  std::int64_t reduce_rounds = 1;  // rounds of reduce_rows tokens that are sent together
  // Blocks at the end whose sums are made by those who have multiplied, and their reduce_rows and
  // reduce_rounds: when nothing is left to multiply, more threads have more loads under way. All
  // blocks: nobody sums beside them (num_reduce_sms, reduce_rounds and the like are the defaults).
  std::int64_t last_blocks = 0, last_rows = 1, last_rounds = 1;
  friend bool operator==(const GroupedRsConfig&, const GroupedRsConfig&) = default;
};
NamedFields fields_of(GroupedRsConfig& config);

ExpertTiles tiles_of(const GroupedRsDesc& desc, const GroupedRsConfig& config);
// The block_tiles with which n columns are so many blocks, or a few more.
std::int64_t tiles_of_block(std::int64_t n, std::int64_t tile_cols, std::int64_t blocks);
// The reduce_rounds with which no worker sums more often per block, `rows` tokens at a time.
std::int64_t rounds_of_turns(const GroupedRsDesc& desc, const GroupedRsConfig& config,
                             std::int64_t rows, int turns);
// All sums after all products, of as many tokens at a time, `most_rows` at most, as registers hold
// rows of.
inline constexpr std::int64_t kMostRowsAtEnd = 48;
void sum_at_end(const GroupedRsDesc& desc, GroupedRsConfig& config,
                std::int64_t most_rows = kMostRowsAtEnd);
// Sums of a quarter of the columns while the next are multiplied, by threads beside the products.
void sum_beside(const GroupedRsDesc& desc, GroupedRsConfig& config);
// The same in so many blocks of columns on SMs of their own, taken from the config's, with rows
// loaded ahead.
void sum_on_sms(const GroupedRsDesc& desc, GroupedRsConfig& config, int sms, std::int64_t blocks);
// Whether a token's rows fit the slots of that, and a rank has as many tokens as it sums at a time.
bool can_sum_on_sms(const GroupedRsDesc& desc);
NamedFields fields_of(GroupedRsDesc& desc);
GroupedRsConfig default_config(const GroupedRsDesc& desc, Target target = Target::kCpu);

// Extent m; S = ceil(m / P), T and R the tiles and rows of tiles_of. Inputs a [R, k] and b
// [num_experts, n, k], the own part of a sum over ranks; tables of the own rank (expert_tiles.h)
// tiles_used [1] i32 in 0..T, tile_experts [T, 1] i32 in 0..E-1, slots [m * top_k, 1] i32 in
// 0..R-1; weights [m, top_k] f32, the same on every rank; residual [S, n], of the own tokens;
// bias [num_experts, n] of out_dtype, of which only ranks that add it read any.
// Output out [S, n]. A rank's products are rounded to out_dtype, its weighted sum of them is fp32,
// rounded once where there are several ranks; these parts are added in the order of ranks, in fp32,
// and rounded. UserError naming the field of a bad desc or config; at a launch, the table and entry
// that break their contract. After COMET (arXiv 2502.19811, section 3): layer 1 decomposed along
// columns.
// With all_reduce residual [m, n], the same on every rank, and symmetric output out [m, n]: who has
// a token sends its sum on to every rank, so that all have the same bits; the program is called
// grouped_gemm_ar.
Program grouped_gemm_rs(const GroupedRsDesc& desc, const GroupedRsConfig& config);

// m: tokens of all ranks with two of 5 experts each, n: hidden size, k: the summed dimension.
OperatorInfo grouped_gemm_rs_info();
OperatorInfo grouped_gemm_ar_info();

}  // namespace stretto
