// Copies of regions by the threads of an agent.
#pragma once

#include "stretto/device/sm90/global.h"

template <int kRun, class T>
STRETTO_DEVICE void copy_box(const Box<T>& to, const Box<const T>& from, const Team& t,
                             int threads) {
  i32 rows = min(from.rows, to.rows), cols = min(from.cols, to.cols);
  i32 first_row = max(from.first_row, to.first_row), first_col = max(from.first_col, to.first_col);
  if (rows <= first_row || cols <= first_col) return;
  i64 runs = (cols + kRun - 1) / kRun;
  for (i64 i = first_row * runs + t.tid; i < rows * runs; i += threads) {
    i64 r = i / runs, c = i % runs * kRun;
    const T* src = from.data + r * from.row_stride + c * from.col_stride;
    T* dst = to.data + r * to.row_stride + c * to.col_stride;
    if (c >= first_col && c + kRun <= cols) {
      *reinterpret_cast<Run<T, kRun>*>(dst) = *reinterpret_cast<const Run<T, kRun>*>(src);
    } else {
      for (i64 u = 0; u < kRun; ++u) {
        if (c + u < first_col || c + u >= cols) continue;
        dst[u * to.col_stride] = src[u * from.col_stride];
      }
    }
  }
}
