// The tile of loops with products, as a user would write it from the two facts that shape all of
// them: two warpgroups of 64 rows each, and accumulators that fill about half of the registers.
#pragma once

#include <cstdint>

#include "stretto/lang/program_builder.h"

namespace stretto::loops {

inline constexpr std::int64_t kRows = 128, kCols = 192, kStep = 64;  // and of a step along k
inline constexpr int kStages = 4;
inline constexpr std::int64_t kRaster = 8;

// A grid of [m, n] whose tiles are stored from an accumulator in float.
inline TileSpace grid_of(ProgramBuilder& p, const TensorRef& c) {
  return p.grid(c, kRows, kCols).raster(kRaster);
}

}  // namespace stretto::loops
