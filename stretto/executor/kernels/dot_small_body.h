// The body of dot_small.h, compiled once per instruction set: the including file defines
// STRETTO_TARGET (the attribute of every function here) and STRETTO_TARGET_NAME (the namespace).
//
// Order of every sum, whatever m: over stored rows of W^T, 8 lanes, lane j taking k = j, j+8, ...,
// then (0+4)+(2+6) + ((1+5)+(3+7)); over stored columns, ascending k.
#include <algorithm>

#include "stretto/base/errors.h"
#include "stretto/executor/kernels/dot_small.h"
#include "stretto/executor/kernels/dot_widen_body.h"

namespace stretto::kernels::STRETTO_TARGET_NAME {
namespace {

constexpr std::int64_t kAhead = 2;  // blocks of rows

STRETTO_TARGET inline float sum_lanes(F8 v) {
  return ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7]));
}

// acc[m0 .. m0+kM, n0 .. n0+kR]
template <DType kDType, int kM, int kR>
STRETTO_TARGET void rows_block(const SmallDot& s, std::int64_t m0, std::int64_t n0) {
  const std::byte* w[kR];
  for (int r = 0; r < kR; ++r)
    w[r] = static_cast<const std::byte*>(s.weights) +
           (n0 + r) * s.weights_stride * static_cast<std::ptrdiff_t>(kBytes<kDType>);
  const float* x = s.x + m0 * s.x_stride;
  F8 sum[kM][kR] = {};
  std::int64_t k = 0, whole = s.k - s.k % kLanes;
  constexpr std::int64_t kPerLine = 64 / static_cast<std::int64_t>(kBytes<kDType>);
  for (; k < whole; k += kLanes) {
    // The hardware's prefetchers do not see that the next block of rows follows this one.
    for (int r = 0; kM == 1 && k % kPerLine == 0 && r < kR; ++r)
      __builtin_prefetch(w[r] + (kAhead * kR * s.weights_stride + k) *
                                    static_cast<std::ptrdiff_t>(kBytes<kDType>));
    F8 weight[kR];
    for (int r = 0; r < kR; ++r)
      weight[r] = widen<kDType>(w[r] + k * static_cast<std::ptrdiff_t>(kBytes<kDType>));
    for (int m = 0; m < kM; ++m) {
      F8 factor = read<F8>(x + m * s.x_stride + k);
      for (int r = 0; r < kR; ++r) sum[m][r] += weight[r] * factor;
    }
  }
  for (int r = 0; k < s.k && r < kR; ++r) {
    F8 weight = widen_some<kDType>(w[r] + k * static_cast<std::ptrdiff_t>(kBytes<kDType>), s.k - k);
    for (int m = 0; m < kM; ++m) sum[m][r] += weight * read<F8>(x + m * s.x_stride + k);
  }
  for (int m = 0; m < kM; ++m) {
    float* acc = s.acc + (m0 + m) * s.acc_stride + n0;
    for (int r = 0; r < kR; ++r) acc[r] = (s.accumulate ? acc[r] : 0.0f) + sum_lanes(sum[m][r]);
  }
}

// Twelve sums and the operands fill the 16 vector registers.
template <int kM>
inline constexpr int kRowsAtOnce = kM == 4 ? 3 : 4;

template <DType kDType, int kM>
STRETTO_TARGET void rows_span(const SmallDot& s, std::int64_t m0, std::int64_t n, std::int64_t n1) {
  for (; n + kRowsAtOnce<kM> <= n1; n += kRowsAtOnce<kM>)
    rows_block<kDType, kM, kRowsAtOnce<kM>>(s, m0, n);
  for (; n < n1; ++n) rows_block<kDType, kM, 1>(s, m0, n);
}

template <DType kDType>
STRETTO_TARGET void rows_of(const SmallDot& s) {
  constexpr std::int64_t kSpan = 12;  // rows of W that stay in the first-level cache for the next m
  for (std::int64_t n = 0; n < s.n; n += kSpan) {
    std::int64_t n1 = std::min(n + kSpan, s.n);
    for (std::int64_t m = 0; m < s.m; m += 4) {
      std::int64_t rest = s.m - m;
      if (rest >= 4) rows_span<kDType, 4>(s, m, n, n1);
      if (rest == 3) rows_span<kDType, 3>(s, m, n, n1);
      if (rest == 2) rows_span<kDType, 2>(s, m, n, n1);
      if (rest == 1) rows_span<kDType, 1>(s, m, n, n1);
    }
  }
}

// acc[m0 .. m0+kM, n0 .. n0+8*kV] += x[.., k0 .. k1] * W; of the last vector only `count` columns
// exist when kV is 1.
template <DType kDType, int kM, int kV>
STRETTO_TARGET void columns_block(const SmallDot& s, std::int64_t m0, std::int64_t n0,
                                  std::int64_t k0, std::int64_t k1, std::int64_t count = kLanes) {
  constexpr auto kElement = static_cast<std::ptrdiff_t>(kBytes<kDType>);
  std::size_t last_bytes = static_cast<std::size_t>(count) * sizeof(float);
  bool fresh = k0 == 0 && !s.accumulate;
  F8 sum[kM][kV] = {};
  for (int m = 0; m < kM && !fresh; ++m) {
    const float* acc = s.acc + (m0 + m) * s.acc_stride + n0;
    for (int v = 0; v < kV; ++v)
      std::memcpy(&sum[m][v], acc + v * kLanes, kV == 1 ? last_bytes : sizeof(F8));
  }
  for (std::int64_t k = k0; k < k1; ++k) {
    const std::byte* w =
        static_cast<const std::byte*>(s.weights) + (k * s.weights_stride + n0) * kElement;
    F8 weight[kV];
    for (int v = 0; v < kV; ++v) {
      weight[v] = kV == 1 && count < kLanes ? widen_some<kDType>(w, count)
                                            : widen<kDType>(w + v * kLanes * kElement);
    }
    for (int m = 0; m < kM; ++m) {
      float factor = s.x[(m0 + m) * s.x_stride + k];
      for (int v = 0; v < kV; ++v) sum[m][v] += weight[v] * factor;
    }
  }
  for (int m = 0; m < kM; ++m) {
    float* acc = s.acc + (m0 + m) * s.acc_stride + n0;
    for (int v = 0; v < kV; ++v)
      std::memcpy(acc + v * kLanes, &sum[m][v], kV == 1 ? last_bytes : sizeof(F8));
  }
}

template <int kM>
inline constexpr int kVectorsAtOnce = kM == 1 ? 8 : (kM == 4 ? 2 : 4);

struct ColumnSpan {
  std::int64_t n0, n1, k0, k1;
};

template <DType kDType, int kM>
STRETTO_TARGET void columns_span(const SmallDot& s, std::int64_t m0, const ColumnSpan& span) {
  constexpr int kV = kVectorsAtOnce<kM>;
  std::int64_t n = span.n0;
  for (; n + kV * kLanes <= span.n1; n += kV * kLanes)
    columns_block<kDType, kM, kV>(s, m0, n, span.k0, span.k1);
  for (; n < span.n1; n += kLanes)
    columns_block<kDType, kM, 1>(s, m0, n, span.k0, span.k1,
                                 std::min<std::int64_t>(kLanes, span.n1 - n));
}

template <DType kDType>
STRETTO_TARGET void columns_of(const SmallDot& s) {
  // A block of W stays in the first-level cache while the groups of columns and rows pass over it.
  constexpr std::int64_t kBlockK = 64, kBlockN = 64;
  for (std::int64_t n = 0; n < s.n; n += kBlockN) {
    for (std::int64_t k = 0; k < s.k; k += kBlockK) {
      ColumnSpan span{n, std::min(n + kBlockN, s.n), k, std::min(k + kBlockK, s.k)};
      for (std::int64_t m = 0; m < s.m; m += 4) {
        std::int64_t rest = s.m - m;
        if (rest >= 4) columns_span<kDType, 4>(s, m, span);
        if (rest == 3) columns_span<kDType, 3>(s, m, span);
        if (rest == 2) columns_span<kDType, 2>(s, m, span);
        if (rest == 1) columns_span<kDType, 1>(s, m, span);
      }
    }
  }
}

}  // namespace

void dot_weight_rows(const SmallDot& s) {
  if (s.dtype == DType::kF32) return rows_of<DType::kF32>(s);
  if (s.dtype == DType::kBF16) return rows_of<DType::kBF16>(s);
  STRETTO_CHECK(s.dtype == DType::kF16, "dot: weights are neither f32, bf16 nor f16");
  rows_of<DType::kF16>(s);
}

void dot_weight_columns(const SmallDot& s) {
  if (s.dtype == DType::kF32) return columns_of<DType::kF32>(s);
  if (s.dtype == DType::kBF16) return columns_of<DType::kBF16>(s);
  STRETTO_CHECK(s.dtype == DType::kF16, "dot: weights are neither f32, bf16 nor f16");
  columns_of<DType::kF16>(s);
}

}  // namespace stretto::kernels::STRETTO_TARGET_NAME
