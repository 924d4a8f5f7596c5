// Registers and clipped regions as the views that the CPU kernels take (kernels/tile_ref.h).
#pragma once

#include <cstddef>
#include <cstdint>

#include "stretto/executor/kernels/copy.h"
#include "stretto/executor/kernels/elementwise.h"
#include "stretto/executor/kernels/tile_ref.h"
#include "stretto/executor/tensor_mem.h"
#include "stretto/executor/worker_state.h"

namespace stretto {

using kernels::TileRef;

inline TileRef tile_of(const Register& reg) {
  return {kernels::register_dtype(reg.dtype), reg.rows, reg.cols, reg.data, reg.cols, 1};
}

// The part of a region's tile that lies inside the tensor.
inline TileRef memory_tile(const ClippedTile& t) {
  return {t.tensor->dtype, t.num_rows(), t.num_cols(), t.data, t.row_stride, t.col_stride};
}

inline TileRef transposed(const TileRef& t) {
  return {t.dtype, t.cols, t.rows, t.data, t.col_stride, t.row_stride};
}

// Elements [row, row + rows) x [col, col + cols).
inline TileRef sub_tile(const TileRef& t, std::int64_t row, std::int64_t col, std::int64_t rows,
                        std::int64_t cols) {
  auto bytes = static_cast<std::ptrdiff_t>(size_bytes(t.dtype));
  std::ptrdiff_t offset = (row * t.row_stride + col * t.col_stride) * bytes;
  return {t.dtype,      rows,        cols, static_cast<std::byte*>(t.data) + offset,
          t.row_stride, t.col_stride};
}

// to = from of the same shape, converted to to's dtype.
inline void copy_tile(const TileRef& to, const TileRef& from) { kernels::store(to, from); }

inline void zero_tile(const TileRef& t) { kernels::fill(t, 0); }

}  // namespace stretto
