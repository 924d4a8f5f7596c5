// The body of dot_small.h, compiled once per instruction set: the including file defines
// STRETTO_TARGET (the attribute of every function here), STRETTO_TARGET_NAME (the namespace) and
// what dot_widen_body.h asks for.
//
// Order of every sum: ascending k from what was there, the chain of dot_tiles.h. Stored rows of W^T
// are turned over in registers for that, a square of vectors at a time.
#include <algorithm>

#include "stretto/base/errors.h"
#include "stretto/executor/kernels/dot_small.h"
#include "stretto/executor/kernels/dot_widen_body.h"

namespace stretto::kernels::STRETTO_TARGET_NAME {
namespace {

// Rows of x that are multiplied while a square of W lies in registers.
constexpr int kMostRows = kLanes == 16 ? 8 : 4;

// sum[m, v] += x[m0 + m, k .. k + 2 * kLanes] * W for weights of bf16. Two neighbours of a row
// travel as one: half as much is turned over, and nothing is widened.
template <int kM, int kV>
STRETTO_TARGET inline void pairs_of_rows(const SmallDot& s, std::int64_t m0, std::int64_t k,
                                         const std::byte* w, std::int64_t count,
                                         Floats (&sum)[kM][kV]) {
  Floats pairs[kV][kLanes];
#pragma GCC unroll 4
  for (int v = 0; v < kV; ++v) {
#pragma GCC unroll 16
    for (int r = 0; r < kLanes; ++r) {
      bool is_there = kV > 1 || r < count;
      pairs[v][r] = is_there ? read<Floats>(w + (v * kLanes + r) * s.weights_stride * 2) : Floats{};
    }
    transpose(pairs[v]);
  }
#if defined(STRETTO_TARGET_PAIRS)
  if (s.x_pairs != nullptr) {
    const float* x = s.x_pairs + m0 * s.x_stride + k / 2;
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; ++i) {
#pragma GCC unroll 8
      for (int m = 0; m < kM; ++m) {
        const Floats factor = everywhere(x + m * s.x_stride + i);
#pragma GCC unroll 4
        for (int v = 0; v < kV; ++v) sum[m][v] = add_pairs(sum[m][v], turned(pairs[v][i]), factor);
      }
    }
    return;
  }
#endif
  const float* x = s.x + m0 * s.x_stride + k;
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i) {
    Floats first[kV], second[kV];
    for (int v = 0; v < kV; ++v) {
      first[v] = (Floats)((Words)pairs[v][i] << 16);
      second[v] = (Floats)((Words)pairs[v][i] & 0xffff0000u);
    }
#pragma GCC unroll 8
    for (int m = 0; m < kM; ++m) {
      const float* factor = x + m * s.x_stride + 2 * i;
#pragma GCC unroll 4
      for (int v = 0; v < kV; ++v) sum[m][v] += first[v] * factor[0];
#pragma GCC unroll 4
      for (int v = 0; v < kV; ++v) sum[m][v] += second[v] * factor[1];
    }
  }
}

// acc[m0 .. m0+kM, n0 .. n0+kLanes*kV]; of the last vector only `count` columns exist when kV is 1.
template <DType kDType, int kM, int kV>
STRETTO_TARGET void rows_block(const SmallDot& s, std::int64_t m0, std::int64_t n0,
                               std::int64_t count = kLanes) {
  constexpr auto kElement = static_cast<std::ptrdiff_t>(kBytes<kDType>);
  constexpr std::int64_t kPerLine = 64 / kElement;
  const std::ptrdiff_t stride = s.weights_stride * kElement;
  const std::byte* w = static_cast<const std::byte*>(s.weights) + n0 * stride;
  const float* x = s.x + m0 * s.x_stride;
  const std::size_t bytes = static_cast<std::size_t>(count) * sizeof(float);
  Floats sum[kM][kV] = {};
  for (int m = 0; m < kM && s.accumulate; ++m) {
    const float* acc = s.acc + (m0 + m) * s.acc_stride + n0;
    for (int v = 0; v < kV; ++v)
      std::memcpy(&sum[m][v], acc + v * kLanes, kV == 1 ? bytes : sizeof(Floats));
  }
  std::int64_t k = 0;
  // The hardware's prefetchers do not see that the next block of rows follows this one.
  auto prefetch = [&]() STRETTO_TARGET {
    for (int r = 0; kM == 1 && k % kPerLine == 0 && r < kV * kLanes; ++r)
      __builtin_prefetch(w + (kV * kLanes + r) * stride + k * kElement);
  };
  if constexpr (kDType == DType::kBF16) {
    for (; k + 2 * kLanes <= s.k; k += 2 * kLanes) {
      prefetch();
      pairs_of_rows<kM, kV>(s, m0, k, w + k * kElement, count, sum);
    }
  }
  for (; k + kLanes <= s.k; k += kLanes) {
    prefetch();
    Floats weight[kV][kLanes];
#pragma GCC unroll 4
    for (int v = 0; v < kV; ++v) {
#pragma GCC unroll 16
      for (int r = 0; r < kLanes; ++r) {
        bool is_there = kV > 1 || r < count;
        weight[v][r] =
            is_there ? widen<kDType>(w + (v * kLanes + r) * stride + k * kElement) : Floats{};
      }
      transpose(weight[v]);
    }
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; ++i) {
#pragma GCC unroll 8
      for (int m = 0; m < kM; ++m) {
        float factor = x[m * s.x_stride + k + i];
#pragma GCC unroll 4
        for (int v = 0; v < kV; ++v) sum[m][v] += weight[v][i] * factor;
      }
    }
  }
  for (int v = 0; k < s.k && v < kV; ++v) {
    Floats weight[kLanes] = {};
    for (int r = 0; r < kLanes && (kV > 1 || r < count); ++r) {
      weight[r] = widen_some<kDType>(w + (v * kLanes + r) * stride + k * kElement, s.k - k);
    }
    transpose(weight);
    for (std::int64_t i = 0; i < s.k - k; ++i) {
      for (int m = 0; m < kM; ++m) sum[m][v] += weight[i] * x[m * s.x_stride + k + i];
    }
  }
  for (int m = 0; m < kM; ++m) {
    float* acc = s.acc + (m0 + m) * s.acc_stride + n0;
    for (int v = 0; v < kV; ++v)
      std::memcpy(acc + v * kLanes, &sum[m][v], kV == 1 ? bytes : sizeof(Floats));
  }
}

// Calls `body` for kMostRows rows, or for the fewer that are left.
template <int kM = kMostRows, typename Body>
STRETTO_TARGET inline void with_rows(std::int64_t rest, const Body& body) {
  if constexpr (kM > 1) {
    if (rest < kM) return with_rows<kM - 1>(rest, body);
  }
  body.template operator()<kM>();
}

// Several vectors of columns, so that sums of one row do not wait for each other; more than two
// squares of 16 leave no registers.
template <DType kDType, int kM>
STRETTO_TARGET void rows_span(const SmallDot& s, std::int64_t m0, std::int64_t n, std::int64_t n1) {
  constexpr int kColumns = kM == 1 ? 32 : kM == 2 ? 16 : 8, kV = std::max(1, kColumns / kLanes);
  for (; n + kV * kLanes <= n1; n += kV * kLanes) rows_block<kDType, kM, kV>(s, m0, n);
  for (; kV > 2 && n + 2 * kLanes <= n1; n += 2 * kLanes) rows_block<kDType, kM, 2>(s, m0, n);
  for (; n < n1; n += kLanes)
    rows_block<kDType, kM, 1>(s, m0, n, std::min<std::int64_t>(kLanes, n1 - n));
}

template <DType kDType>
STRETTO_TARGET void rows_of(const SmallDot& s) {
  // Rows of W that stay in the first-level cache for the next m.
  const std::int64_t span = s.m == 1 ? 32 : 16;
  for (std::int64_t n = 0; n < s.n; n += span) {
    std::int64_t n1 = std::min(n + span, s.n);
    for (std::int64_t m = 0; m < s.m; m += kMostRows) {
      with_rows(s.m - m, [&]<int kM>() STRETTO_TARGET { rows_span<kDType, kM>(s, m, n, n1); });
    }
  }
}

// acc[m0 .. m0+kM, n0 .. n0+kLanes*kV] += x[.., k0 .. k1] * W; of the last vector only `count`
// columns exist when kV is 1.
template <DType kDType, int kM, int kV>
STRETTO_TARGET void columns_block(const SmallDot& s, std::int64_t m0, std::int64_t n0,
                                  std::int64_t k0, std::int64_t k1, std::int64_t count = kLanes) {
  constexpr auto kElement = static_cast<std::ptrdiff_t>(kBytes<kDType>);
  std::size_t last_bytes = static_cast<std::size_t>(count) * sizeof(float);
  bool fresh = k0 == 0 && !s.accumulate;
  Floats sum[kM][kV] = {};
  for (int m = 0; m < kM && !fresh; ++m) {
    const float* acc = s.acc + (m0 + m) * s.acc_stride + n0;
    for (int v = 0; v < kV; ++v)
      std::memcpy(&sum[m][v], acc + v * kLanes, kV == 1 ? last_bytes : sizeof(Floats));
  }
  for (std::int64_t k = k0; k < k1; ++k) {
    const std::byte* w =
        static_cast<const std::byte*>(s.weights) + (k * s.weights_stride + n0) * kElement;
    Floats weight[kV];
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
      std::memcpy(acc + v * kLanes, &sum[m][v], kV == 1 ? last_bytes : sizeof(Floats));
  }
}

template <int kM>
inline constexpr int kVectorsAtOnce = std::min(64 / kLanes, kM == 1 ? 8 : (kM >= 4 ? 2 : 4));

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
      for (std::int64_t m = 0; m < s.m; m += kMostRows) {
        with_rows(s.m - m, [&]<int kM>() STRETTO_TARGET { columns_span<kDType, kM>(s, m, span); });
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
