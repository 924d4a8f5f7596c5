// What the lists of configs that may be fastest on a Hopper GPU are made of, for products with and
// without communication. Tiles are [rows, columns, step] in elements; their stages fill the 227 KiB
// of shared memory beside the staging of a store. Odd widths fill the last wave of tiles where wide
// ones leave SMs idle.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "stretto/ops/gemm/linear.h"
#include "stretto/ops/gemm/row_runs.h"
#include "stretto/ops/operator/config_list.h"

namespace stretto {

inline constexpr MainLoop kWide{.tile = {128, 256, 64}, .num_stages = 4},
    kMiddle{.tile = {128, 192, 64}, .num_stages = 4},
    kNarrow{.tile = {128, 128, 64}, .num_stages = 6}, kOdd{.tile = {128, 160, 64}, .num_stages = 5},
    kOddWide{.tile = {128, 224, 64}, .num_stages = 4},
    kThin{.tile = {128, 96, 64}, .num_stages = 6}, kSmall{.tile = {64, 64, 64}, .num_stages = 8},
    kFlat{.tile = {64, 128, 64}, .num_stages = 6},
    kFlatWide{.tile = {64, 256, 64}, .num_stages = 4};

// Loops that suit a product of `rows` rows; tiles of 128 rows would be half empty for a few.
inline std::vector<MainLoop> loops_for(std::int64_t rows) {
  if (rows <= 64) return {kFlat, kSmall, kFlatWide};
  return {kWide, kMiddle, kNarrow, kOdd, kOddWide, kThin};
}

// The product that a desc asks for, of so many rows on so many SMs.
template <typename Desc>
GpuLoopDesc loop_desc(const Desc& d, std::int64_t rows, int num_sms) {
  GpuLoopDesc loop{.m = rows, .n = d.n, .k = d.k, .num_sms = num_sms};
  if constexpr (requires { d.weight_dtype; }) {
    loop.a_dtype = d.dtype, loop.b_dtype = d.weight_dtype;
  } else {
    loop.a_dtype = d.a_dtype, loop.b_dtype = d.b_dtype;
  }
  if constexpr (requires { d.swiglu; }) loop.swiglu = d.swiglu;
  if constexpr (requires { d.scaling; }) loop.scaling = d.scaling;
  return loop;
}
template <typename Desc>
MainLoop gpu_loop(const Desc& d, std::int64_t rows, int num_sms) {
  return gpu_loop(loop_desc(d, rows, num_sms));
}

// A loop with the tile and the stages of another, on so many SMs: who multiplies loads and stores.
inline MainLoop with_tile(MainLoop loop, const MainLoop& tile, int num_sms) {
  loop.tile = tile.tile;
  loop.num_stages = tile.num_stages;
  loop.num_compute_sms = num_sms;
  loop.stagger = loop.store_slots = loop.load_slots = 0;
  return loop;
}

inline std::int64_t num_tiles(std::int64_t m, std::int64_t n, const GemmTile& tile) {
  return ceil_div(m, tile.bm) * ceil_div(n, tile.bn);
}

// With the weights as the left factor, of which the tensor core takes 64 rows at a time, and any
// multiple of 8 rows beside them up to 256: for few rows, which would leave a tile of 128 half
// empty. As many slices as fit beside a tile of so many bytes an element, which is stored or turned
// in shared memory; 0 or 1 where none are loaded ahead.
inline constexpr std::int64_t kMostSwappedRows = 256;
inline MainLoop swapped_loop(std::int64_t rows, std::int64_t cols, std::int64_t bytes) {
  constexpr std::int64_t kSharedBytes = std::int64_t{224} << 10, kStep = 64, kMostStages = 8;
  const std::int64_t stored = bytes * rows * cols, of_stage = 2 * (rows + cols) * kStep;
  const std::int64_t stages = std::min((kSharedBytes - stored) / of_stage, kMostStages);
  return {.tile = {.bm = rows, .bn = cols, .bk = kStep}, .num_stages = static_cast<int>(stages)};
}

// SMs' rounds over tiles in so many parts of k each, in rounds over whole tiles.
inline double rounds(std::int64_t tiles, int parts, int num_sms) {
  return static_cast<double>(ceil_div(tiles * parts, std::int64_t{num_sms})) / parts;
}
// In how many parts of k tiles may be cut: where each saves a tenth of the rounds or more over the
// one before, and has steps enough to fill its pipe.
inline std::vector<int> paying_splits(std::int64_t tiles, std::int64_t steps, int num_sms) {
  constexpr double kLeastGain = 0.9;
  double least = kLeastGain * rounds(tiles, 1, num_sms);
  std::vector<int> splits;
  for (int parts : {2, 3, 4, 6, 8}) {
    if (steps < 4 * parts) break;
    if (rounds(tiles, parts, num_sms) > least) continue;
    least = kLeastGain * rounds(tiles, parts, num_sms);
    splits.push_back(parts);
  }
  return splits;
}

// At most 1 / channels of a run of rows, and no more channels than blocks of rows.
inline std::int64_t channels_of(std::int64_t run_rows, std::int64_t rows, std::int64_t at_most) {
  return std::clamp<std::int64_t>(run_rows / rows, 1, at_most);
}

// The same, each of `cols` columns and moved by one copy.
inline std::int64_t copied_channels_of(std::int64_t run_rows, std::int64_t rows, std::int64_t cols,
                                       std::int64_t at_most) {
  return std::max(channels_of(run_rows, rows, at_most), least_channels(run_rows, rows, cols));
}

}  // namespace stretto
