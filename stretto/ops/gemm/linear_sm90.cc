// What was measured of the loops chosen here is in docs/performance/gemm.md, 'Why the defaults are
// what they are'; of tiles on CPUs in docs/performance/cpu.md.
#include <algorithm>
#include <bit>
#include <optional>

#include "stretto/base/errors.h"
#include "stretto/ops/gemm/linear.h"

namespace stretto {
namespace {

std::int64_t round_up(std::int64_t value, std::int64_t step) {
  return ceil_div(value, step) * step;
}

constexpr std::int64_t kRowBytes = 128;  // of a slot: one line, permuted as a whole

std::int64_t size_bytes_of(const GpuLoopDesc& d) {
  return static_cast<std::int64_t>(size_bytes(d.a_dtype));
}

// Columns of a tile that have one scale.
bool fits(std::int64_t bn, Scaling scaling) {
  return scaling != Scaling::kBlock || kScaleBlock % bn == 0;
}

// As many rows as there are: TMA takes longer for a row that is not there than for one that is.
std::int64_t rows_that_exist(std::int64_t m, std::int64_t most) {
  return std::min(round_up(std::max<std::int64_t>(m, 1), 8), most);
}

// Narrow tiles read as many bytes of rows as of weights, or more, which is too much where an SM has
// several. These leave each SM one tile, as long as that is not too wide.
std::optional<MainLoop> loop_of_64_rows(const GpuLoopDesc& d) {
  constexpr std::int64_t kStageBytes = std::int64_t{200} * 1024, kMostStages = 12;
  constexpr std::int64_t kMostCols = 256, kStep = 8;
  const bool plain = d.scaling == Scaling::kNone && !d.swiglu && size_bytes_of(d) == 2;
  const std::int64_t narrow = ceil_div(ceil_div(d.n, std::int64_t{32}), std::int64_t{d.num_sms});
  if (!plain || d.m <= kFewRows / 4 || narrow < (d.m > kFewRows / 2 ? 2 : 3)) return std::nullopt;
  const std::int64_t share = round_up(ceil_div(d.n, std::int64_t{d.num_sms}), kStep);
  const GemmTile tile{
      .bm = rows_that_exist(d.m, kFewRows), .bn = std::min(share, kMostCols), .bk = 64};
  const std::int64_t stages = kStageBytes / ((kFewRows + tile.bn) * kRowBytes);
  return MainLoop{.tile = tile, .num_stages = static_cast<int>(std::min(stages, kMostStages))};
}

// Narrow tiles and long steps: HBM gives a row of weights faster in stretches of 512 bytes and more
// than in many short ones, and every step costs its waits.
MainLoop streaming_loop(const GpuLoopDesc& d) {
  constexpr std::int64_t kStageBytes = std::int64_t{200} * 1024, kMostStages = 24;
  constexpr std::int64_t kLeastCols = 32, kStep = 8;
  const std::int64_t weights = d.swiglu ? 2 : 1, most_cols = 128 / weights;
  const std::int64_t line = kRowBytes / size_bytes_of(d);
  // A scale of a block holds for a step of the block's columns.
  const std::int64_t most = d.scaling == Scaling::kBlock ? line : 8 * line;
  // Rows that are loaded; past 8, a slot has room for kFewRows all the same, which the tensor core
  // reads.
  GemmTile tile{.bm = rows_that_exist(d.m, kFewRows), .bn = kLeastCols, .bk = most};
  auto columns_of_a_worker = [&](std::int64_t bn) {
    return ceil_div(ceil_div(d.n, bn), std::int64_t{d.num_sms}) * bn;
  };
  auto try_columns = [&](std::int64_t bn) {
    if (!fits(bn, d.scaling)) return;
    if (columns_of_a_worker(bn) < columns_of_a_worker(tile.bn)) tile.bn = bn;
  };
  for (std::int64_t bn = kLeastCols; bn <= most_cols; bn += kStep) try_columns(bn);
  // Narrower ones where SMs would be left without a tile.
  for (std::int64_t bn : {24, 16}) {
    if (ceil_div(d.n, bn) <= d.num_sms) try_columns(bn);
  }
  std::int64_t slot_rows = tile.bm > 8 ? kFewRows : 8;
  auto stages = [&] {
    return kStageBytes / ((slot_rows + tile.bn * weights) * tile.bk * size_bytes_of(d));
  };
  while (tile.bk > line && (stages() < 3 || (d.k > 0 && tile.bk >= 2 * d.k))) tile.bk /= 2;
  return {.tile = tile, .num_stages = static_cast<int>(std::min(stages(), kMostStages))};
}

}  // namespace

GemmTile default_tile(std::int64_t m, std::int64_t n, std::int64_t k) {
  // Each tile packs its operands anew, so tiles are large (docs/performance/cpu.md, 'Why the
  // defaults are what they are').
  constexpr std::int64_t kMaxRows = 256, kMaxCols = 512;
  GemmTile tile;
  bool decode = m <= 16;
  tile.bm = decode ? m : std::min(round_up(ceil_div(m, std::int64_t{4}), 16), kMaxRows);
  tile.bn = std::min(round_up(ceil_div(n, std::int64_t{2}), 16), kMaxCols);
  tile.bk = k <= 64 ? 32 : std::min<std::int64_t>(round_up(k, 64), 512);
  return tile;
}

GemmTile scaled_tile(GemmTile tile, Scaling scaling) {
  if (scaling != Scaling::kBlock) return tile;
  tile.bk = kScaleBlock;
  auto most = static_cast<std::uint64_t>(std::min(tile.bn, kScaleBlock));
  tile.bn = static_cast<std::int64_t>(std::bit_floor(most));
  return tile;
}

MainLoop gpu_loop(const GpuLoopDesc& d) {
  STRETTO_CHECK(d.num_sms > 0, "the loop of a product on no SMs");
  bool matrix = d.a_dtype == d.b_dtype && size_bytes(d.a_dtype) <= 2;
  if (!matrix) return {.tile = {.bm = 64, .bn = 64, .bk = 32}, .num_stages = 2};
  if (d.m <= kFewRows) return loop_of_64_rows(d).value_or(streaming_loop(d));
  constexpr std::int64_t kMaxRows = 128;  // two warpgroups of 64 rows
  constexpr std::int64_t kStageBytes = std::int64_t{192} * 1024;
  std::int64_t max_cols = d.swiglu ? 128 : 256;  // accumulators fill half the registers
  bool scaled = d.scaling == Scaling::kBlock;
  // Twice the tiles where half of the SMs would have none.
  bool halves = d.m <= kMaxRows && 2 * ceil_div(d.n, std::int64_t{64}) <= d.num_sms;
  if (halves && d.scaling == Scaling::kNone && size_bytes_of(d) == 2) {
    const std::int64_t half = rows_that_exist(ceil_div(d.m, std::int64_t{2}), kFewRows);
    return {.tile = {half, 64, 64}, .num_stages = d.swiglu ? 6 : 8};
  }
  if (scaled) max_cols /= 2;  // beside the sums, products of their size
  GemmTile tile{.bm = rows_that_exist(d.m, kMaxRows), .bn = 64, .bk = kRowBytes / size_bytes_of(d)};
  // The width that keeps the SMs busiest: waves of tiles times the time of one, which is that of
  // its columns and of tile_cost more. With scales of blocks a tile costs more columns
  // (docs/decisions/0007-fp8-products.md).
  const std::int64_t tile_cost = scaled ? 146 : 16;
  // What narrow tiles load takes longer than their products.
  const bool plain = !scaled && !d.swiglu && size_bytes_of(d) == 2;
  auto columns_in_time = [&](std::int64_t bn) {
    return std::max(bn + tile_cost, plain ? 3 * (tile.bm + bn) / 5 : 0);
  };
  auto waves = [&](std::int64_t bn) {
    std::int64_t tiles = ceil_div(d.m, tile.bm) * ceil_div(d.n, bn);
    return ceil_div(tiles, std::int64_t{d.num_sms}) * columns_in_time(bn);
  };
  for (std::int64_t bn : {96, 128, 160, 192, 224, 256}) {
    if (bn <= max_cols && fits(bn, d.scaling) && waves(bn) <= waves(tile.bn)) tile.bn = bn;
  }
  const std::int64_t most_stages = d.m <= kMaxRows ? 8 : 6;
  std::int64_t slice = (kMaxRows + tile.bn * (d.swiglu ? 2 : 1)) * kRowBytes;  // rows of a slot
  return {.tile = tile, .num_stages = static_cast<int>(std::min(kStageBytes / slice, most_stages))};
}

// Widths for which warpgroups that end apart were faster. Where each SM has a tile at most they are
// slower: a store has no next tile to hide behind.
int paying_stagger(const GemmTile& tile, std::int64_t num_tiles, int num_sms) {
  if (tile.bm != 128 || num_tiles <= num_sms) return 0;
  switch (tile.bn) {
    case 256:
    case 224:
      return 2;
    case 160:
    case 128:
      return 3;
    default:
      return 0;
  }
}

std::int64_t columns_of_sm(std::int64_t row_tiles, std::int64_t n, std::int64_t bn, int num_sms) {
  return ceil_div(row_tiles * ceil_div(n, bn), std::int64_t{num_sms}) * bn;
}

// Weights [k, n] take tiles of 160 columns: narrower ones were slower.
std::vector<std::int64_t> ping_pong_widths(bool b_kn, std::int64_t widest) {
  if (b_kn) return {160};
  std::vector<std::int64_t> widths = {176, 168, 160, 152, 144};
  std::erase_if(widths, [&](std::int64_t width) { return width > widest; });
  return widths;
}

MainLoop ping_pong_loop(std::int64_t width, int num_compute_sms) {
  return {.tile = {.bm = 128, .bn = width, .bk = 64},
          .num_compute_sms = num_compute_sms,
          .raster = 4,
          .num_stages = 5,
          .num_consumers = 2};
}

// The width that leaves the least of the SMs' time over. A tile takes as long as its columns and
// some twelve more.
MainLoop busiest_ping_pong(std::int64_t row_tiles, std::int64_t n,
                           const std::vector<std::int64_t>& widths, int num_sms) {
  constexpr std::int64_t kEdgeColumns = 12;
  auto time = [&](std::int64_t bn) {
    return columns_of_sm(row_tiles, n, bn, num_sms) / bn * (bn + kEdgeColumns);
  };
  std::int64_t width =
      *std::min_element(widths.begin(), widths.end(),
                        [&](std::int64_t x, std::int64_t y) { return time(x) < time(y); });
  return ping_pong_loop(width, num_sms);
}

// Warpgroups in turn are faster where every SM has several tiles and no more columns than with
// `other`, but for two per cent.
bool turns_pay(const MainLoop& loop, std::int64_t row_tiles, std::int64_t n, const GemmTile& other,
               int num_sms) {
  const std::int64_t bn = loop.tile.bn, columns = columns_of_sm(row_tiles, n, bn, num_sms);
  return columns > 2 * bn && columns * 50 <= columns_of_sm(row_tiles, n, other.bn, num_sms) * 51;
}

}  // namespace stretto
