// Products with many rows, in blocks that fit the caches: panels of B are packed as f32, and a
// block of registers walks down them (Goto and van de Geijn, "Anatomy of High-Performance Matrix
// Multiplication", 2008). Internal to dot.
//
// Every element is one chain, acc + a[0] * b[0] + a[1] * b[1] + ... in ascending k, each step
// rounded once (twice where there is no FMA): its bits depend neither on where it lies in a tile,
// nor on the tile's extents, nor on how k is cut into calls, nor on the width of the vectors.
//
// dot_tiles_body.h is the code; dot_tiles_avx512.cc, _pairs.cc, _avx2.cc and _portable.cc compile
// it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "stretto/base/dtype.h"

namespace stretto::kernels {

struct TileDot {
  float* acc;  // [m, n]
  std::ptrdiff_t acc_stride;
  const void* a;  // [m, k], columns contiguous
  DType a_dtype;  // f32, bf16 or f16
  std::ptrdiff_t a_row_stride;
  const void* b;  // [k, n], one of the strides is 1
  DType b_dtype;  // f32, bf16 or f16
  std::ptrdiff_t b_row_stride, b_col_stride;
  std::int64_t m, n, k;
  bool accumulate;
};

// What is packed at a time: kTileK x kTileN words of B and kTileM x kTileK of A, for the
// second-level cache. A longer k would read and write acc less often, but push a panel of B (kTileK
// x 16 or 32) out of the first-level cache (docs/performance/cpu.md, 'Why the defaults are what
// they are').
inline constexpr std::int64_t kTileM = 96, kTileN = 512, kTileK = 384;

namespace avx512 {
void dot_tiles(const TileDot& t, std::vector<float>& scratch);
}
namespace pairs {  // a and b are bf16
void dot_tiles(const TileDot& t, std::vector<float>& scratch);
}
namespace avx2 {
void dot_tiles(const TileDot& t, std::vector<float>& scratch);
}
namespace portable {
void dot_tiles(const TileDot& t, std::vector<float>& scratch);
}

}  // namespace stretto::kernels
