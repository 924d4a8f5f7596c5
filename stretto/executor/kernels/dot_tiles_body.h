// The body of dot_tiles.h, compiled once per instruction set: the including file defines
// STRETTO_TARGET and STRETTO_TARGET_NAME as for dot_small_body.h, the floats of a vector
// (STRETTO_VECTOR_FLOATS) and the rows of A that a block of registers holds (STRETTO_BLOCK_ROWS).
#include <algorithm>
#include <cstring>

#include "stretto/executor/kernels/dot_tiles.h"
#include "stretto/executor/kernels/dot_widen_body.h"

namespace stretto::kernels::STRETTO_TARGET_NAME {
namespace {

constexpr int kWidth = STRETTO_VECTOR_FLOATS;
constexpr int kRows = STRETTO_BLOCK_ROWS;
constexpr int kVectors = 2;
constexpr int kPanel = kVectors * kWidth;  // columns of a packed panel
using Vec = float __attribute__((vector_size(kWidth * sizeof(float))));

// Rows of the block of A, packed: an odd number of cache lines apart, so that they do not compete
// for the same cache sets.
constexpr std::int64_t kStrideA = kTileK + 16;

struct BlockOfM {
  std::int64_t m0, m;
};
struct BlockOfN {
  std::int64_t n0, n;
};
struct BlockOfK {
  std::int64_t k0, k;
};

struct Packed {
  float* panels;  // of B: [n / kPanel][k][kPanel]
  float* a;       // [m, k] with kStrideA
};

// ---- packing: a panel holds kPanel columns of B as [k][kPanel], zeros beyond n

template <DType kDType>
STRETTO_TARGET void pack_stored_rows(const TileDot& t, const BlockOfK& at, std::int64_t n0,
                                     std::int64_t count, float* panel) {
  constexpr auto kElement = static_cast<std::ptrdiff_t>(kBytes<kDType>);
  const auto* from = static_cast<const std::byte*>(t.b) + (at.k0 * t.b_row_stride + n0) * kElement;
  for (std::int64_t k = 0; k < at.k; ++k, from += t.b_row_stride * kElement, panel += kPanel) {
    for (std::int64_t c = 0; c < kPanel; c += kLanes) {
      std::int64_t rest = count - c;
      F8 v = {};
      if (rest >= kLanes) {
        v = widen<kDType>(from + c * kElement);
      } else if (rest > 0) {
        v = widen_some<kDType>(from + c * kElement, rest);
      }
      std::memcpy(panel + c, &v, sizeof(v));
    }
  }
}

// A corner where fewer than eight columns or eight k are left.
template <DType kDType>
STRETTO_TARGET void pack_corner(const std::byte* from, std::ptrdiff_t stride, std::int64_t columns,
                                std::int64_t depth, float* to) {
  F8 r[kLanes] = {};
  for (std::int64_t i = 0; i < columns; ++i) r[i] = widen_some<kDType>(from + i * stride, depth);
  transpose(r);
  for (std::int64_t i = 0; i < depth; ++i) std::memcpy(to + i * kPanel, &r[i], sizeof(F8));
}

// B^T is stored: k is contiguous.
template <DType kDType>
STRETTO_TARGET void pack_stored_columns(const TileDot& t, const BlockOfK& at, std::int64_t n0,
                                        std::int64_t count, float* panel) {
  constexpr auto kElement = static_cast<std::ptrdiff_t>(kBytes<kDType>);
  std::ptrdiff_t stride = t.b_col_stride * kElement;
  for (std::int64_t c = 0; c < kPanel; c += kLanes) {
    const auto* from = static_cast<const std::byte*>(t.b) + (n0 + c) * stride + at.k0 * kElement;
    std::int64_t columns = std::clamp<std::int64_t>(count - c, 0, kLanes), k = 0;
    for (; columns == kLanes && k + kLanes <= at.k; k += kLanes) {
      F8 r[kLanes];
#pragma GCC unroll 8
      for (int i = 0; i < kLanes; ++i) {
        const std::byte* p = from + i * stride + k * kElement;
        __builtin_prefetch(p + kLanes * stride);  // pages apart, where the hardware does not look
        r[i] = widen<kDType>(p);
      }
      transpose(r);
#pragma GCC unroll 8
      for (int i = 0; i < kLanes; ++i) std::memcpy(panel + (k + i) * kPanel + c, &r[i], sizeof(F8));
    }
    for (; k < at.k; k += kLanes)
      pack_corner<kDType>(from + k * kElement, stride, columns,
                          std::min<std::int64_t>(kLanes, at.k - k), panel + k * kPanel + c);
  }
}

template <DType kDType>
STRETTO_TARGET void pack_b_of(const TileDot& t, const BlockOfK& at, const BlockOfN& cols,
                              float* panels) {
  for (std::int64_t c = 0; c < cols.n; c += kPanel, panels += at.k * kPanel) {
    std::int64_t count = std::min<std::int64_t>(kPanel, cols.n - c);
    if (t.b_col_stride == 1) {
      pack_stored_rows<kDType>(t, at, cols.n0 + c, count, panels);
    } else {
      pack_stored_columns<kDType>(t, at, cols.n0 + c, count, panels);
    }
  }
}

STRETTO_TARGET void pack_b(const TileDot& t, const BlockOfK& at, const BlockOfN& cols,
                           float* panels) {
  if (t.b_dtype == DType::kF32) return pack_b_of<DType::kF32>(t, at, cols, panels);
  if (t.b_dtype == DType::kBF16) return pack_b_of<DType::kBF16>(t, at, cols, panels);
  pack_b_of<DType::kF16>(t, at, cols, panels);
}

template <DType kDType>
STRETTO_TARGET void pack_a_of(const TileDot& t, const BlockOfK& at, const BlockOfM& rows,
                              float* to) {
  constexpr auto kElement = static_cast<std::ptrdiff_t>(kBytes<kDType>);
  constexpr std::int64_t kAheadRows = 8, kPerLine = 64 / kElement;
  std::ptrdiff_t stride = t.a_row_stride * kElement;
  const auto* from = static_cast<const std::byte*>(t.a) + rows.m0 * stride + at.k0 * kElement;
  for (std::int64_t r = 0; r < rows.m; ++r, from += stride, to += kStrideA) {
    std::int64_t k = 0;
    for (; k + kLanes <= at.k; k += kLanes) {
      if (k % kPerLine == 0) __builtin_prefetch(from + kAheadRows * stride + k * kElement);
      F8 v = widen<kDType>(from + k * kElement);
      std::memcpy(to + k, &v, sizeof(v));
    }
    if (k == at.k) continue;
    F8 v = widen_some<kDType>(from + k * kElement, at.k - k);
    std::memcpy(to + k, &v, sizeof(v));  // kStrideA leaves room
  }
}

STRETTO_TARGET void pack_a(const TileDot& t, const BlockOfK& at, const BlockOfM& rows, float* to) {
  if (t.a_dtype == DType::kF32) return pack_a_of<DType::kF32>(t, at, rows, to);
  if (t.a_dtype == DType::kBF16) return pack_a_of<DType::kBF16>(t, at, rows, to);
  pack_a_of<DType::kF16>(t, at, rows, to);
}

// ---- a block of registers

struct Strip {
  float* acc;  // [rows, kPanel]
  std::ptrdiff_t acc_stride;
  const float* a;      // [rows, k] with kStrideA
  const float* panel;  // [k][kPanel]
  std::int64_t k;
  bool fresh;  // acc holds nothing yet
};

STRETTO_TARGET inline void write(float* p, Vec v) { std::memcpy(p, &v, sizeof(v)); }

// The sums stay in registers only if every loop over them is unrolled.
template <int kR>
STRETTO_TARGET void multiply(const Strip& s) {
  Vec sum[kR][kVectors];
#pragma GCC unroll 16
  for (int r = 0; r < kR; ++r) {
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v)
      sum[r][v] = s.fresh ? Vec{} : read<Vec>(s.acc + r * s.acc_stride + v * kWidth);
  }
  for (int r = 0; r < kR; ++r) {
    const float* next = s.acc + (kR + r) * s.acc_stride;
    for (int c = 0; c < kPanel; c += 16) __builtin_prefetch(next + c, 1);
  }
  const float *a = s.a, *panel = s.panel;
#pragma GCC unroll 4
  for (std::int64_t k = 0; k < s.k; ++k, ++a, panel += kPanel) {
    Vec b[kVectors];
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) b[v] = read<Vec>(panel + v * kWidth);
#pragma GCC unroll 16
    for (int r = 0; r < kR; ++r) {
      float factor = a[r * kStrideA];
#pragma GCC unroll 16
      for (int v = 0; v < kVectors; ++v) sum[r][v] += b[v] * factor;
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < kR; ++r) {
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) write(s.acc + r * s.acc_stride + v * kWidth, sum[r][v]);
  }
}

// Fewer rows than a whole block: the same chain for each.
template <int kR = kRows - 1>
STRETTO_TARGET void multiply_some(const Strip& s, std::int64_t rows) {
  if (rows == kR) return multiply<kR>(s);
  if constexpr (kR > 1) multiply_some<kR - 1>(s, rows);
}

STRETTO_TARGET void multiply_rows(const Strip& s, std::int64_t rows) {
  rows == kRows ? multiply<kRows>(s) : multiply_some<>(s, rows);
}

// The last panel, of which only `count` columns exist.
STRETTO_TARGET void multiply_edge(Strip s, std::int64_t rows, std::int64_t count) {
  float whole[kRows][kPanel] = {};
  auto bytes = static_cast<std::size_t>(count) * sizeof(float);
  float* acc = s.acc;
  for (std::int64_t r = 0; r < rows && !s.fresh; ++r)
    std::memcpy(whole[r], acc + r * s.acc_stride, bytes);
  std::ptrdiff_t stride = s.acc_stride;
  s.acc = whole[0];
  s.acc_stride = kPanel;
  multiply_rows(s, rows);
  for (std::int64_t r = 0; r < rows; ++r) std::memcpy(acc + r * stride, whole[r], bytes);
}

STRETTO_TARGET void multiply_tile(const TileDot& t, const BlockOfK& at, const BlockOfM& rows,
                                  const BlockOfN& cols, const Packed& packed) {
  bool fresh = at.k0 == 0 && !t.accumulate;
  for (std::int64_t c = 0; c < cols.n; c += kPanel) {
    for (std::int64_t r = 0; r < rows.m; r += kRows) {
      std::int64_t height = std::min<std::int64_t>(kRows, rows.m - r);
      Strip strip{t.acc + (rows.m0 + r) * t.acc_stride + cols.n0 + c,
                  t.acc_stride,
                  packed.a + r * kStrideA,
                  packed.panels + c * at.k,
                  at.k,
                  fresh};
      std::int64_t count = cols.n - c;
      count >= kPanel ? multiply_rows(strip, height) : multiply_edge(strip, height, count);
    }
  }
}

Packed room_for_packed(std::vector<float>& scratch) {
  constexpr std::int64_t kLine = 64 / sizeof(float);
  scratch.resize(static_cast<std::size_t>(kTileK * kTileN + kTileM * kStrideA + kLine));
  float* panels = scratch.data();
  // A vector that crosses a cache line costs two reads.
  while (reinterpret_cast<std::uintptr_t>(panels) % 64 != 0) ++panels;
  return {panels, panels + kTileK * kTileN};
}

}  // namespace

STRETTO_TARGET void dot_tiles(const TileDot& t, std::vector<float>& scratch) {
  Packed packed = room_for_packed(scratch);
  for (std::int64_t n0 = 0; n0 < t.n; n0 += kTileN) {
    BlockOfN cols{n0, std::min(kTileN, t.n - n0)};
    for (std::int64_t k0 = 0; k0 < t.k; k0 += kTileK) {
      BlockOfK at{k0, std::min(kTileK, t.k - k0)};
      pack_b(t, at, cols, packed.panels);
      for (std::int64_t m0 = 0; m0 < t.m; m0 += kTileM) {
        BlockOfM rows{m0, std::min(kTileM, t.m - m0)};
        pack_a(t, at, rows, packed.a);
        multiply_tile(t, at, rows, cols, packed);
      }
    }
  }
}

}  // namespace stretto::kernels::STRETTO_TARGET_NAME
