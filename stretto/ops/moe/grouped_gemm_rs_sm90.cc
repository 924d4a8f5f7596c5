#include <algorithm>

#include "stretto/ops/gemm/candidate_loops.h"
#include "stretto/ops/moe/grouped_gemm_rs.h"

namespace stretto {
namespace {

// Into how many parts an owner's rows go, so that the sums of a block, of all owners and columns,
// are no more than `turns` of each worker: one more than that would be another turn for a few of
// them, and the rest would wait.
std::int64_t shares_of_turns(const GroupedRsDesc& d, const GroupedRsConfig& c, int turns) {
  std::int64_t col_groups = c.loop.tile.bn * c.block_tiles / c.reduce_cols;
  std::int64_t shares =
      std::int64_t{c.loop.num_compute_sms} * turns / (d.shape.world_size * col_groups);
  return std::max<std::int64_t>(shares, 1);
}

// Of sums on SMs of their own: tokens at a time, and rows under way, of 8 KB each with them.
constexpr std::int64_t kRowsOnSms = 16, kSlotsOnSms = 20;

// Tokens that registers hold the rows of, of their experts or of all ranks.
std::int64_t rows_at_end(const GroupedRsDesc& d, std::int64_t most_rows) {
  constexpr std::int64_t kMostParts = 16 * 9, kUnit = 8;
  std::int64_t parts =  // of a token, and what they add up to
      d.shape.world_size == 1 ? d.shape.top_k
                              : std::max<std::int64_t>(d.shape.top_k, d.shape.world_size) + 1;
  std::int64_t most = std::min(kMostParts / parts, most_rows);
  return std::max(most / kUnit, std::int64_t{1}) * kUnit;
}

}  // namespace

std::int64_t tiles_of_block(std::int64_t n, std::int64_t tile_cols, std::int64_t blocks) {
  return std::max<std::int64_t>(ceil_div(n, tile_cols) / blocks, 1);
}

std::int64_t rounds_of_turns(const GroupedRsDesc& d, const GroupedRsConfig& c, std::int64_t rows,
                             int turns) {
  return ceil_div(ceil_div(d.shape.rows_per_rank(), rows), shares_of_turns(d, c, turns));
}

void sum_at_end(const GroupedRsDesc& d, GroupedRsConfig& c, std::int64_t most_rows) {
  constexpr std::int64_t kUnit = 8;
  constexpr int kTurns = 2;
  c.block_tiles = ceil_div(d.n, c.loop.tile.bn);
  std::int64_t most = rows_at_end(d, most_rows);
  std::int64_t of_share = ceil_div(d.shape.rows_per_rank(), shares_of_turns(d, c, kTurns));
  std::int64_t rows = ceil_div(of_share, ceil_div(of_share, most));
  c.last_blocks = 1;
  c.last_rows = std::min(ceil_div(rows, kUnit) * kUnit, d.shape.rows_per_rank());
  c.last_rounds = rounds_of_turns(d, c, c.last_rows, kTurns);
  c.num_reduce_sms = c.num_reduce_stages = 0;
  c.reduce_rows = c.reduce_rounds = 1;
}

void sum_beside(const GroupedRsDesc& d, GroupedRsConfig& c) {
  // What is under way at a time, products and the other ranks' sums, fits the registers of three
  // warps beside a producer, each with as many rows.
  constexpr std::int64_t kWarps = 3, kRows = 72;
  std::int64_t rows_of_warp = kRows / kWarps / (d.shape.top_k + d.shape.world_size);
  if (d.shape.world_size >
      2) {  // more spill: a row takes 4 registers for each part and 8 for its sum
    rows_of_warp = std::min(rows_of_warp, 80 / (4 * (d.shape.top_k + d.shape.world_size - 1) + 8));
  }
  const std::int64_t blocks = d.shape.world_size > 2 && !d.all_reduce ? 8 : 4;
  c.block_tiles = ceil_div(ceil_div(d.n, c.loop.tile.bn), blocks);
  c.last_blocks = 0;
  c.last_rows = c.last_rounds = 1;
  c.num_reduce_sms = c.num_reduce_stages = 0;
  c.reduce_rows = std::min(kWarps * std::clamp<std::int64_t>(rows_of_warp, 1, d.all_reduce ? 3 : 4),
                           d.shape.rows_per_rank());
  c.reduce_rounds = rounds_of_turns(d, c, c.reduce_rows, 1);
}

bool can_sum_on_sms(const GroupedRsDesc& d) {
  return d.shape.top_k <= kSlotsOnSms && d.shape.rows_per_rank() >= kRowsOnSms;
}

void sum_on_sms(const GroupedRsDesc& d, GroupedRsConfig& c, int sms, std::int64_t blocks) {
  constexpr int kTurns = 2;
  const int all = c.loop.num_compute_sms;
  c.loop.num_compute_sms = sms;  // whose turns are counted
  c.block_tiles = tiles_of_block(d.n, c.loop.tile.bn, blocks);
  c.last_blocks = 0;
  c.last_rows = c.last_rounds = 1;
  c.num_reduce_sms = sms;
  c.num_reduce_stages = static_cast<int>(kSlotsOnSms / d.shape.top_k);
  c.reduce_rows = kRowsOnSms;
  c.reduce_rounds = rounds_of_turns(d, c, kRowsOnSms, kTurns);
  c.loop.num_compute_sms = all - sms;
}

GroupedRsConfig default_config(const GroupedRsDesc& d, Target target) {
  std::int64_t mean_rows =
      ceil_div(d.shape.m * d.shape.top_k, d.shape.num_experts);  // of an expert
  if (target == Target::kCpu) {
    GemmTile tile = default_tile(d.shape.m, d.n, d.k);
    tile.bm = std::clamp<std::int64_t>(ceil_div(mean_rows, std::int64_t{16}) * 16, 16, 128);
    tile.bm = std::min(tile.bm, d.shape.m * d.shape.top_k);
    return {.loop = {.tile = tile},
            .reduce_rows = std::min<std::int64_t>(16, d.shape.rows_per_rank()),
            .reduce_cols = tile.bn};
  }
  MainLoop loop = gpu_loop(d, std::max(2 * kFewRows, d.shape.m * d.shape.top_k), target.sms());
  if (mean_rows <= 64) loop.tile.bm = 64;
  GroupedRsConfig c{.loop = {.tile = loop.tile, .raster = 4, .num_stages = loop.num_stages}};
  c.reduce_cols = c.loop.tile.bn;
  std::int64_t tiles = tiles_of(d, c).num_tiles() * ceil_div(d.n, c.loop.tile.bn);
  // At the end they take less, but where a row's product is long on more than two ranks or in an
  // all-reduce.
  constexpr std::int64_t kLongProduct = 2560;
  const bool beside = d.k >= kLongProduct && (d.shape.world_size > 2 || d.all_reduce);
  // Of seven ranks and more one row of a warp spills beside products: the sums of an all-reduce
  // have SMs of their own then.
  const int reduce_sms = beside && d.all_reduce && d.shape.world_size > 6 ? 8 : 0;
  c.loop.num_compute_sms = gpu_workers(tiles, target.sms() - reduce_sms);
  if (beside) {
    sum_beside(d, c);
    c.num_reduce_sms = reduce_sms;
  } else {
    sum_at_end(d, c);
  }
  return c;
}

}  // namespace stretto
