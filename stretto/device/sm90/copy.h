// Copies of regions by the threads of an agent.
#pragma once

#include "stretto/device/sm90/global.h"

template <int kRun, class T>
STRETTO_DEVICE void copy_box(const Box<T>& to, const Box<const T>& from, const Team& t,
                             int threads) {
  i64 rows = from.rows < to.rows ? from.rows : to.rows;
  i64 cols = from.cols < to.cols ? from.cols : to.cols;
  if (rows <= 0 || cols <= 0) return;
  i64 runs = (cols + kRun - 1) / kRun;
  for (i64 i = t.tid; i < rows * runs; i += threads) {
    i64 r = i / runs, c = i % runs * kRun;
    const T* src = from.data + r * from.row_stride + c * from.col_stride;
    T* dst = to.data + r * to.row_stride + c * to.col_stride;
    if (c + kRun <= cols) {
      *reinterpret_cast<Run<T, kRun>*>(dst) = *reinterpret_cast<const Run<T, kRun>*>(src);
    } else {
      for (i64 u = 0; c + u < cols; ++u) dst[u * to.col_stride] = src[u * from.col_stride];
    }
  }
}
