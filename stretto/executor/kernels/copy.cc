#include "stretto/executor/kernels/copy.h"

#include <algorithm>
#include <cstring>

#include "stretto/base/errors.h"
#include "stretto/executor/kernels/convert.h"
#include "stretto/executor/kernels/elementwise.h"

namespace stretto::kernels {
namespace {

// Blocks of a transposition. Few columns: where the source is wide by a power of two, their lines
// share one set of the first-level cache.
constexpr std::int64_t kBlockRows = 64, kBlockCols = 8;

template <typename Tile>
Tile part(Tile t, std::int64_t row, std::int64_t col, std::int64_t rows, std::int64_t cols) {
  auto bytes = static_cast<std::ptrdiff_t>(size_bytes(t.dtype));
  std::ptrdiff_t offset = (row * t.row_stride + col * t.col_stride) * bytes;
  if constexpr (std::is_same_v<Tile, TileRef>) {
    t.data = static_cast<std::byte*>(t.data) + offset;
  } else {
    t.data = static_cast<const std::byte*>(t.data) + offset;
  }
  t.rows = rows;
  t.cols = cols;
  return t;
}

TileRef flipped(TileRef t) {
  std::swap(t.rows, t.cols);
  std::swap(t.row_stride, t.col_stride);
  return t;
}

template <typename T>
void copy_strided(const TileRef& to, const ConstTileRef& from) {
  for (std::int64_t r0 = 0; r0 < to.rows; r0 += kBlockRows) {
    for (std::int64_t c0 = 0; c0 < to.cols; c0 += kBlockCols) {
      std::int64_t r1 = std::min(r0 + kBlockRows, to.rows), c1 = std::min(c0 + kBlockCols, to.cols);
      for (std::int64_t r = r0; r < r1; ++r) {
        T* dst = to.row<T>(r);
        const T* src = from.row<T>(r);
        for (std::int64_t c = c0; c < c1; ++c) dst[c * to.col_stride] = src[c * from.col_stride];
      }
    }
  }
}

// Converts a tile whose columns are contiguous on one side and whose rows are on the other: block
// by block, converted along the source and then transposed.
void convert_transposed(const TileRef& to, const ConstTileRef& from) {
  alignas(64) std::byte block[kBlockRows * kBlockCols * 8];
  for (std::int64_t r = 0; r < to.rows; r += kBlockRows) {
    for (std::int64_t c = 0; c < to.cols; c += kBlockCols) {
      std::int64_t rows = std::min(kBlockRows, to.rows - r);
      std::int64_t cols = std::min(kBlockCols, to.cols - c);
      TileRef converted{to.dtype, rows, cols, block, 1, kBlockRows};
      ConstTileRef source = part(from, r, c, rows, cols);
      auto bytes = static_cast<std::ptrdiff_t>(size_bytes(to.dtype));
      for (std::int64_t j = 0; j < cols; ++j) {
        convert(to.dtype, block + j * kBlockRows * bytes, from.dtype,
                part(source, 0, j, rows, 1).data, rows);
      }
      copy(part(to, r, c, rows, cols), converted);
    }
  }
}

// Same shape, any dtypes and strides.
void convert_tile(const TileRef& to, const ConstTileRef& from) {
  if (to.dtype == from.dtype) return copy(to, from);
  bool rows_contiguous = from.col_stride == 1 && to.col_stride == 1;
  if (rows_contiguous) {
    for (std::int64_t r = 0; r < to.rows; ++r)
      convert(to.dtype, part(to, r, 0, 1, 0).data, from.dtype, part(from, r, 0, 1, 0).data,
              to.cols);
  } else if (from.row_stride == 1 && to.row_stride == 1) {
    convert_tile(flipped(to), transposed(from));
  } else if (from.row_stride == 1) {
    convert_transposed(to, from);
  } else if (from.col_stride == 1 && to.row_stride == 1) {
    convert_transposed(flipped(to), transposed(from));
  } else {
    cast(to, from);
  }
}

// f(i, index) for each i32 or i64 index.
template <typename F>
void for_each_index(const ConstTileRef& rows, F f) {
  bool wide = rows.dtype == DType::kI64;
  STRETTO_CHECK((wide || rows.dtype == DType::kI32) && rows.cols == 1, "row indices: i32 or i64");
  for (std::int64_t i = 0; i < rows.rows; ++i)
    f(i, wide ? *rows.row<std::int64_t>(i) : *rows.row<std::int32_t>(i));
}

}  // namespace

void load(const TileRef& to, const ConstTileRef& from, double outside) {
  STRETTO_CHECK(from.rows <= to.rows && from.cols <= to.cols, "load: more elements than the tile");
  convert_tile(part(to, 0, 0, from.rows, from.cols), from);
  if (from.cols < to.cols) fill(part(to, 0, from.cols, from.rows, to.cols - from.cols), outside);
  if (from.rows < to.rows) fill(part(to, from.rows, 0, to.rows - from.rows, to.cols), outside);
}

void store(const TileRef& to, const ConstTileRef& from) {
  STRETTO_CHECK(to.rows <= from.rows && to.cols <= from.cols, "store: more room than elements");
  convert_tile(to, part(from, 0, 0, to.rows, to.cols));
}

void gather_rows(const TileRef& to, const ConstTileRef& from, const ConstTileRef& rows) {
  STRETTO_CHECK(rows.rows == to.rows, "gather_rows: one index per row");
  for_each_index(rows, [&](std::int64_t i, std::int64_t row) {
    bool inside = row >= 0 && row < from.rows;
    ConstTileRef source = inside ? part(from, row, 0, 1, from.cols) : part(from, 0, 0, 0, 0);
    load(part(to, i, 0, 1, to.cols), source);
  });
}

void scatter_rows(const TileRef& to, const ConstTileRef& from, const ConstTileRef& rows) {
  STRETTO_CHECK(rows.rows == from.rows, "scatter_rows: one index per row");
  for_each_index(rows, [&](std::int64_t i, std::int64_t row) {
    if (row < 0 || row >= to.rows) return;
    store(part(to, row, 0, 1, to.cols), part(from, i, 0, 1, from.cols));
  });
}

void transpose(const TileRef& to, const ConstTileRef& from) { copy(to, transposed(from)); }

void copy(const TileRef& to, const ConstTileRef& from) {
  STRETTO_CHECK(to.dtype == from.dtype, "copy: dtypes differ");
  STRETTO_CHECK(to.rows == from.rows && to.cols == from.cols, "copy: shapes differ");
  std::size_t bytes = size_bytes(to.dtype);
  if (to.rows == 0 || to.cols == 0) return;
  if (to.col_stride == 1 && from.col_stride == 1) {
    bool packed = to.row_stride == to.cols && from.row_stride == from.cols;
    std::int64_t num_copies = packed ? 1 : to.rows;
    auto length = static_cast<std::size_t>(packed ? to.rows * to.cols : to.cols) * bytes;
    for (std::int64_t r = 0; r < num_copies; ++r)
      std::memcpy(part(to, r, 0, 1, 0).data, part(from, r, 0, 1, 0).data, length);
    return;
  }
  if (to.row_stride == 1 && from.row_stride == 1) return copy(flipped(to), transposed(from));
  switch (bytes) {
    case 1:
      return copy_strided<std::uint8_t>(to, from);
    case 2:
      return copy_strided<std::uint16_t>(to, from);
    case 4:
      return copy_strided<std::uint32_t>(to, from);
    default:
      return copy_strided<std::uint64_t>(to, from);
  }
}

}  // namespace stretto::kernels
