// The matrix product of tiles: the kernel in which the CPU executor spends nearly all of its time.
// The executor folds a loop of {load a, load b, dot} into one call, so the operands are usually
// views of tensors in memory.
//
// Tiles of few rows (decode) run on a kernel that reads 16-bit weights in place (dot_small.h), the
// rest on one that packs its operands (dot_tiles.h), as f32, or as pairs of bf16 where the
// processor multiplies such (dot_pairs.h); doubles, which are for checking, on a plain loop. Why:
// docs/decisions/0002-cpu-matrix-kernels.md.
#pragma once

#include "stretto/executor/kernels/tile_ref.h"

namespace stretto::kernels {

struct DotArgs {
  TileRef acc;      // f32 [m, n], col_stride 1; f64 where a and b are
  ConstTileRef a;   // f32, bf16 or f16 [m, k], or f64
  ConstTileRef b;   // f32, bf16 or f16 [k, n], or f64
  bool accumulate;  // acc += a * b; otherwise acc = a * b, whatever acc held
};

// Runs on the calling thread alone and may be called by many at once. a and b have a stride of 1 in
// one direction (more strides work, slowly); any extents, 0 included. The bits of the result depend
// on dtypes and on whether the processor has FMA, not on threads or alignment. Neither do an
// element's bits depend on its place in the tile or on the tile's extents, the number of rows among
// them: all is one chain over k, ascending. Where a and b are both bf16, numbers below f32's normal
// ones count as zero.
// InternalError on other dtypes or shapes that do not fit.
void dot(const DotArgs& args);

inline constexpr int kMaxSmallRows = 8;

}  // namespace stretto::kernels
