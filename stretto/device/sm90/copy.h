// Copies of regions by the threads of an agent.
#pragma once

#include "stretto/device/sm90/global.h"

// One run of kRun columns; what lies outside the box stays.
template <int kRun, class T>
STRETTO_DEVICE void copy_run(const Box<T>& to, const Box<const T>& from, i32 r, i32 c,
                             i32 first_col, i32 cols) {
  const T* src = from.data + r * from.row_stride + c * from.col_stride;
  T* dst = to.data + r * to.row_stride + c * to.col_stride;
  for (i32 u = 0; u < kRun; ++u) {
    if (c + u < first_col || c + u >= cols) continue;
    dst[u * to.col_stride] = src[u * from.col_stride];
  }
}

// `count` units that follow each other on both sides, kBatch loads of a thread under way at a time.
template <int kBatch, class Unit>
STRETTO_DEVICE void copy_units(Unit* to, const Unit* from, u32 count, const Team& t, u32 threads) {
  u32 step = threads * kBatch, begin = t.tid;
  for (; begin + step - threads < count; begin += step) {
    Unit batch[kBatch];
#pragma unroll
    for (int b = 0; b < kBatch; ++b) batch[b] = from[begin + b * threads];
#pragma unroll
    for (int b = 0; b < kBatch; ++b) to[begin + b * threads] = batch[b];
  }
  Unit rest[kBatch - 1];
#pragma unroll
  for (int b = 0; b < kBatch - 1; ++b) {
    if (begin + b * threads < count) rest[b] = from[begin + b * threads];
  }
#pragma unroll
  for (int b = 0; b < kBatch - 1; ++b) {
    if (begin + b * threads < count) to[begin + b * threads] = rest[b];
  }
}

// Zeros in what `to` has and `from` lacks: outside of its tensor a source reads as zero.
template <class T>
STRETTO_DEVICE void clear_rest(const Box<T>& to, const Box<const T>& from, const Team& t,
                               int threads) {
  i32 height = to.rows - to.first_row, width = to.cols - to.first_col;
  if (height <= 0 || width <= 0) return;
#pragma unroll 1
  for (u32 i = t.tid; i < u32(height) * u32(width); i += threads) {
    i32 r = to.first_row + i32(i / width), c = to.first_col + i32(i % width);
    if (from.has_row(r) && from.has_cols(c, 1)) continue;
    to.data[r * to.row_stride + c * to.col_stride] = T{};
  }
}

// Whole runs go in batches, so that every thread has several loads under way; rows that follow each
// other without a gap are one long row.
template <int kRun, int kBatch = 8, class T>
STRETTO_DEVICE void copy_box(const Box<T>& to, const Box<const T>& from, const Team& t,
                             int threads) {
  using Unit = Run<T, kRun>;
  i32 rows = min(from.rows, to.rows), cols = min(from.cols, to.cols);
  i32 first_row = max(from.first_row, to.first_row), first_col = max(from.first_col, to.first_col);
  bool rest =
      rows < to.rows || cols < to.cols || first_row > to.first_row || first_col > to.first_col;
  if (rest) clear_rest(to, from, t, threads);
  if (rows <= first_row || cols <= first_col) return;
  bool one_row = rows - first_row == 1;
  bool dense = from.row_stride == cols && to.row_stride == cols;
  if (kRun > 1 && first_col == 0 && cols % kRun == 0 && (one_row || dense)) {
    copy_units<kBatch>(reinterpret_cast<Unit*>(to.data + first_row * to.row_stride),
                       reinterpret_cast<const Unit*>(from.data + first_row * from.row_stride),
                       u32(rows - first_row) * u32(cols / kRun), t, threads);
    return;
  }
  u32 runs = u32(cols + kRun - 1) / kRun, total = u32(rows - first_row) * runs;
  for (u32 begin = t.tid; begin < total; begin += threads * kBatch) {
    Unit batch[kBatch];
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      u32 i = begin + b * threads;
      i32 r = first_row + i32(i / runs), c = i32(i % runs) * kRun;
      if (i < total && c >= first_col && c + kRun <= cols) {
        batch[b] =
            *reinterpret_cast<const Unit*>(from.data + r * from.row_stride + c * from.col_stride);
      }
    }
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      u32 i = begin + b * threads;
      i32 r = first_row + i32(i / runs), c = i32(i % runs) * kRun;
      if (i >= total) continue;
      if (c >= first_col && c + kRun <= cols) {
        *reinterpret_cast<Unit*>(to.data + r * to.row_stride + c * to.col_stride) = batch[b];
      } else {
        copy_run<kRun>(to, from, r, c, first_col, cols);
      }
    }
  }
}
