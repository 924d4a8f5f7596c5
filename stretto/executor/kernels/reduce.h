// Reductions of register tiles along rows or columns. Dtypes f32, f64, i32 and i64; the output has
// the operand's dtype (argmax: i32). A wrong dtype or shape is an InternalError.
//
// Order of float sums, on every instruction set: a row is summed in 16 lanes, lane j taking the
// columns j, j+16, j+32, ... in ascending order; then lane j += lane j+8, j+4, j+2, j+1. A column
// is summed in ascending row order. Integers wrap. Maxima and minima ignore NaN unless all is NaN.
// An empty sum is 0; an empty maximum -infinity or the lowest integer, a minimum the opposite.
#pragma once

#include "stretto/executor/kernels/tile_ref.h"

namespace stretto::kernels {

// a [r, c] -> out [r, 1].
void row_sum(const TileRef& out, const ConstTileRef& a);
void row_max(const TileRef& out, const ConstTileRef& a);
void row_min(const TileRef& out, const ConstTileRef& a);
// i32 [r, 1]: the lowest column that holds the row's maximum; 0 where all is NaN, -1 without
// columns.
void row_argmax(const TileRef& out, const ConstTileRef& a);

// a [r, c] -> out [1, c].
void col_sum(const TileRef& out, const ConstTileRef& a);
void col_max(const TileRef& out, const ConstTileRef& a);
void col_min(const TileRef& out, const ConstTileRef& a);
void col_argmax(const TileRef& out, const ConstTileRef& a);  // i32 [1, c]; the lowest row

}  // namespace stretto::kernels
