// Moves tiles between memory and registers: load, store, gather, scatter, transpose and plain
// copies. The only kernels, with dot, that see masks: the executor passes how much of a tile lies
// inside the tensor.
//
// Sources and destinations do not overlap. Conversions follow convert.h. A wrong dtype or shape is
// an InternalError.
#pragma once

#include <cstdint>

#include "stretto/executor/kernels/tile_ref.h"

namespace stretto::kernels {

// to [r, c] = from [valid rows, valid cols], any dtypes and strides, and `outside` beyond from's
// extents (which are at most to's).
void load(const TileRef& to, const ConstTileRef& from, double outside = 0);

// to [valid rows, valid cols] = the upper left part of from (whose extents are at least to's).
void store(const TileRef& to, const ConstTileRef& from);

// to[i, :] = from[rows[i], :] for i32 or i64 rows [r, 1]; zeros where the index is outside from.
// The columns are masked as in load.
void gather_rows(const TileRef& to, const ConstTileRef& from, const ConstTileRef& rows);

// to[rows[i], :] = from[i, :]; skipped where the index is outside `to`. Ascending i, so the last of
// equal indices stays. Columns as in store.
void scatter_rows(const TileRef& to, const ConstTileRef& from, const ConstTileRef& rows);

// to [c, r] = from [r, c]^T, same dtype.
void transpose(const TileRef& to, const ConstTileRef& from);

// to = from, same dtype and shape, element for element.
void copy(const TileRef& to, const ConstTileRef& from);

}  // namespace stretto::kernels
