#include <algorithm>

#include "stretto/base/errors.h"
#include "stretto/ops/gemm/candidate_loops.h"
#include "stretto/ops/moe/grouped_gemm.h"

namespace stretto {

std::int64_t mean_rows(const GroupedDesc& d) {
  return d.masked() ? d.m : ceil_div(d.num_rows(), d.num_experts);
}

namespace {

// Whether an expert has a part of the rows, which a table says, of factors without scales.
bool dealt_out(const GroupedDesc& d) { return !d.masked() && d.scaling == Scaling::kNone; }

// Workers for a column of an expert's: as many as it has tiles of rows if all experts get the same,
// of rows that a table deals out half a tile more. One with more rows has workers with several
// tiles. Where a tile is few steps, what a worker does once for its tiles counts beside them.
std::int64_t row_parts(const GroupedDesc& d, std::int64_t bm, std::int64_t steps) {
  constexpr std::int64_t kShort = 8, kMost = 8, kMostOfShort = 4;
  bool unlike = !d.masked() && d.m > kFewRows;
  std::int64_t tiles = ceil_div(mean_rows(d) + (unlike ? bm / 2 : 0), bm);
  return std::min(tiles, steps < kShort ? kMostOfShort : kMost);
}

// An expert has more rows than others: up to so many times the mean go into one tile, as weights
// are read again for each. What has no rows is left out, by quarters of a tile of 64 or more.
std::int64_t rows_of_swapped_tile(const GroupedDesc& d) {
  for (std::int64_t rows : {16, 32, 64}) {
    if (2 * rows >= 3 * mean_rows(d)) return rows;
  }
  return d.swiglu ? 160 : 192;  // more sums of gate and up, of 128 columns each, spill
}

}  // namespace

bool can_swap(const GroupedDesc& d) {
  return d.a_dtype == d.b_dtype && size_bytes(d.a_dtype) == 2 && !d.bias;
}

GroupedConfig swapped_config(const GroupedDesc& d, Target target) {
  if (!can_swap(d)) {
    throw UserError("grouped_gemm: swap_ab is for factors of 16 bits without bias");
  }
  constexpr std::int64_t kCols = 128, kStep = 64, kMostStages = 8;
  constexpr std::int64_t kSharedBytes = std::int64_t{224} << 10;
  const GemmTile tile{.bm = rows_of_swapped_tile(d), .bn = kCols, .bk = kStep};
  // Beside the slots a tile of c, which is turned there before it is stored.
  const std::int64_t slot = 2 * kStep * (tile.bm + kCols * (d.swiglu ? 2 : 1));
  const std::int64_t stages = (kSharedBytes - 2 * tile.bm * kCols) / slot;
  const std::int64_t parts = row_parts(d, tile.bm, ceil_div(d.k, kStep));
  const std::int64_t tiles = split_of(d).share() * parts * ceil_div(d.n, kCols);
  return {.loop = {.tile = tile,
                   .num_compute_sms = gpu_workers(tiles, target.sms()),
                   .num_stages = static_cast<int>(std::min(stages, kMostStages))},
          .row_parts = parts,
          .tickets = true,
          .swap_ab = true};
}

GroupedConfig default_config(const GroupedDesc& d, Target target) {
  if (target == Target::kCpu) {
    GemmTile tile = scaled_tile(default_tile(d.m, d.n, d.k), d.scaling);
    constexpr std::int64_t kMaxRows = 128;
    std::int64_t rows =
        std::clamp<std::int64_t>(ceil_div(mean_rows(d), std::int64_t{16}) * 16, 16, kMaxRows);
    tile.bm = std::min(rows, d.m);
    return {.loop = {.tile = tile}};
  }
  // A row of tiles for all rows that there are, 32 columns each: with more rows than 16 the rows,
  // most of them another expert's, are as many bytes as the weights (docs/performance/moe.md, 'Why
  // the defaults are what they are').
  bool few = d.m <= (dealt_out(d) ? kFewRows / 4 : kFewRows);
  std::int64_t share = split_of(d).share();
  // Few rows of an expert are a row of tiles, too, and take wider ones than a row of tiles for all
  // rows would. With scales of blocks 128 columns spill.
  const bool tile_each = mean_rows(d) <= kFewRows && d.scaling == Scaling::kNone;
  const std::int64_t rows = tile_each ? 2 * kFewRows : mean_rows(d);
  MainLoop loop = gpu_loop(d, few ? d.m : std::max(rows * share, 2 * kFewRows), target.sms());
  if (loop.tile.bm > 64 && mean_rows(d) <= 64) loop.tile.bm = 64;
  std::int64_t steps = ceil_div(d.k, loop.tile.bk), parts = row_parts(d, loop.tile.bm, steps);
  // Beside the most slots and their scales there is room for one buffer to store from. A loop that
  // ends before its slots are full is better off with two.
  bool short_loop = d.scaling == Scaling::kBlock && steps < loop.num_stages;
  if (!few && short_loop) --loop.num_stages;
  return {.loop = {.tile = loop.tile,
                   .num_compute_sms =
                       gpu_workers(share * parts * ceil_div(d.n, loop.tile.bn), target.sms()),
                   .num_stages = loop.num_stages},
          .row_parts = parts,
          .tickets = !few};
}

}  // namespace stretto
