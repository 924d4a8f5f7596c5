// Walks an output tile in contiguous pieces of rows, with each operand's piece beside it, whatever
// the strides and broadcasts, so that the loops of elementwise operations see plain arrays only.
// Internal to the kernels.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "stretto/base/errors.h"
#include "stretto/executor/kernels/tile_ref.h"

namespace stretto::kernels {

inline constexpr std::int64_t kRowChunk = 256;  // elements; a few of them fit the first-level cache

// One operand as the chunks see it. Where its elements are not contiguous in the output's order,
// chunk() copies them into the buffer.
template <typename T>
class ChunkedOperand {
 public:
  ChunkedOperand(const ConstTileRef& tile, std::int64_t rows, std::int64_t cols) : tile_(tile) {
    STRETTO_CHECK((tile.rows == rows || tile.rows == 1) && (tile.cols == cols || tile.cols == 1),
                  "operand does not broadcast to the output");
    STRETTO_CHECK(size_bytes(tile.dtype) == sizeof(T), "operand of an unexpected dtype");
    if (tile.rows == 1) tile_.row_stride = 0;
    if (tile.cols == 1) tile_.col_stride = 0;
  }

  const T* chunk(std::int64_t row, std::int64_t col, std::int64_t count) {
    const T* first = tile_.row<T>(row) + col * tile_.col_stride;
    if (tile_.col_stride == 1 || count == 1) return first;
    if (tile_.col_stride == 0) {
      std::fill_n(buffer_, count, *first);
    } else {
      for (std::int64_t i = 0; i < count; ++i) buffer_[i] = first[i * tile_.col_stride];
    }
    return buffer_;
  }

 private:
  ConstTileRef tile_;
  T buffer_[kRowChunk];
};

// True when the tile's elements follow each other row by row, so that it can be seen as one row.
inline bool is_packed(const ConstTileRef& t) {
  bool cols_packed = t.col_stride == 1 || t.cols == 1;
  return cols_packed && (t.rows == 1 || t.row_stride == t.cols);
}

template <typename Tile>
Tile as_one_row(Tile t) {
  t.cols *= t.rows;
  t.rows = 1;
  t.row_stride = t.cols;
  t.col_stride = 1;
  return t;
}

// Sees packed tiles of one shape as one row: [r,1] columns would otherwise be r chunks of one.
template <typename... Tiles>
void flatten_packed(TileRef& out, Tiles&... operands) {
  [[maybe_unused]] auto fits = [&](const ConstTileRef& t) {
    bool same = t.rows == out.rows && t.cols == out.cols && is_packed(t);
    return same || (t.rows == 1 && t.cols == 1);
  };
  if (!is_packed(out) || !(fits(operands) && ...)) return;
  [[maybe_unused]] auto flatten = [&](ConstTileRef& t) {
    if (t.rows == out.rows && t.cols == out.cols) t = as_one_row(t);
  };
  (flatten(operands), ...);
  out = as_one_row(out);
}

// Calls f(T* destination, row, col, count) for each piece of the output and puts the destination
// where it belongs.
template <typename T, typename F>
void for_each_chunk(const TileRef& out, F f) {
  STRETTO_CHECK(size_bytes(out.dtype) == sizeof(T), "output of an unexpected dtype");
  T buffer[kRowChunk];
  for (std::int64_t r = 0; r < out.rows; ++r) {
    for (std::int64_t c = 0; c < out.cols; c += kRowChunk) {
      std::int64_t count = std::min(kRowChunk, out.cols - c);
      T* place = out.row<T>(r) + c * out.col_stride;
      bool direct = out.col_stride == 1 || count == 1;
      f(direct ? place : buffer, r, c, count);
      for (std::int64_t i = 0; !direct && i < count; ++i) place[i * out.col_stride] = buffer[i];
    }
  }
}

}  // namespace stretto::kernels
