// The matrix product of tiles: the kernel in which the CPU executor spends nearly all of its time.
// The executor folds a loop of {load a, load b, dot} into one call, so the operands are usually
// views of tensors in memory.
//
// Few rows (decode) run on a kernel of our own that reads 16-bit weights in place; the rest runs on
// OpenBLAS, 16-bit operands as panels converted to f32, or on oneDNN where the processor multiplies
// bf16 itself. Why: docs/decisions/0002-cpu-matrix-kernels.md.
#pragma once

#include "stretto/executor/kernels/tile_ref.h"

namespace stretto::kernels {

struct DotArgs {
  TileRef acc;      // f32 [m, n], col_stride 1
  ConstTileRef a;   // f32, bf16 or f16 [m, k]
  ConstTileRef b;   // f32, bf16 or f16 [k, n]
  bool accumulate;  // acc += a * b; otherwise acc = a * b, whatever acc held
};

// Runs on the calling thread alone and may be called by many at once. a and b have a stride of 1 in
// one direction (more strides work, slowly); any extents, 0 included. The bits of the result depend
// on shapes, strides, dtypes and processor, not on threads or alignment. For up to kMaxSmallRows
// rows, a row's bits do not depend on how many others there are. InternalError on other dtypes or
// shapes that do not fit.
void dot(const DotArgs& args);

inline constexpr int kMaxSmallRows = 8;

}  // namespace stretto::kernels
