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

// Whole runs go in batches, so that every thread has several loads under way.
template <int kRun, class T>
STRETTO_DEVICE void copy_box(const Box<T>& to, const Box<const T>& from, const Team& t,
                             int threads) {
  constexpr int kBatch = 8;
  i32 rows = min(from.rows, to.rows), cols = min(from.cols, to.cols);
  i32 first_row = max(from.first_row, to.first_row), first_col = max(from.first_col, to.first_col);
  if (rows <= first_row || cols <= first_col) return;
  u32 runs = u32(cols + kRun - 1) / kRun, total = u32(rows - first_row) * runs;
  for (u32 begin = t.tid; begin < total; begin += threads * kBatch) {
    Run<T, kRun> batch[kBatch];
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      u32 i = begin + b * threads;
      i32 r = first_row + i32(i / runs), c = i32(i % runs) * kRun;
      if (i < total && c >= first_col && c + kRun <= cols) {
        batch[b] = *reinterpret_cast<const Run<T, kRun>*>(from.data + r * from.row_stride +
                                                          c * from.col_stride);
      }
    }
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      u32 i = begin + b * threads;
      i32 r = first_row + i32(i / runs), c = i32(i % runs) * kRun;
      if (i >= total) continue;
      if (c >= first_col && c + kRun <= cols) {
        *reinterpret_cast<Run<T, kRun>*>(to.data + r * to.row_stride + c * to.col_stride) =
            batch[b];
      } else {
        copy_run<kRun>(to, from, r, c, first_col, cols);
      }
    }
  }
}
