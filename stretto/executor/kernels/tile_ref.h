// A 2-D view of elements in memory or in a register of the executor: what every CPU tile kernel
// takes. The executor makes the views; kernels never own memory.
//
// Strides count elements. An ordinary tile has col_stride 1; a transposed one has row_stride 1.
// Kernels that compute (elementwise.h, reduce.h) work on register dtypes: f64 for doubles, f32 for
// every other float, i32, i64, u8 and bool (one byte, 0 or 1). Memory dtypes appear in copy.h, in
// cast and in dot.
#pragma once

#include <cstddef>
#include <cstdint>

#include "stretto/base/dtype.h"

namespace stretto::kernels {

struct TileRef {
  DType dtype = DType::kF32;
  std::int64_t rows = 0, cols = 0;
  void* data = nullptr;
  std::ptrdiff_t row_stride = 0, col_stride = 1;

  template <typename T>
  T* row(std::int64_t r) const {
    return static_cast<T*>(data) + r * row_stride;
  }
};

struct ConstTileRef {
  DType dtype = DType::kF32;
  std::int64_t rows = 0, cols = 0;
  const void* data = nullptr;
  std::ptrdiff_t row_stride = 0, col_stride = 1;

  ConstTileRef() = default;
  ConstTileRef(DType type, std::int64_t num_rows, std::int64_t num_cols, const void* elements,
               std::ptrdiff_t row_step, std::ptrdiff_t col_step = 1)
      : dtype(type),
        rows(num_rows),
        cols(num_cols),
        data(elements),
        row_stride(row_step),
        col_stride(col_step) {}
  ConstTileRef(const TileRef& t)  // NOLINT: reading a writable tile needs no ceremony
      : ConstTileRef(t.dtype, t.rows, t.cols, t.data, t.row_stride, t.col_stride) {}

  template <typename T>
  const T* row(std::int64_t r) const {
    return static_cast<const T*>(data) + r * row_stride;
  }
};

inline ConstTileRef transposed(const ConstTileRef& t) {
  return {t.dtype, t.cols, t.rows, t.data, t.col_stride, t.row_stride};
}

// The dtype in which a register holds values of `dtype`.
inline DType register_dtype(DType dtype) { return is_float(dtype) ? sum_dtype(dtype) : dtype; }

}  // namespace stretto::kernels
