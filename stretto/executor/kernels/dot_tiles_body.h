// The body of dot_tiles.h, compiled once per instruction set: the including file defines
// STRETTO_TARGET and STRETTO_TARGET_NAME as for dot_small_body.h, the floats of a vector of sums
// (STRETTO_VECTOR_FLOATS) and the rows of A that a block of registers holds (STRETTO_BLOCK_ROWS).
// With STRETTO_TARGET_PAIRS it is for two factors of bf16 and packs pairs, the first of two in the
// high half of a word: a word stands wherever a float stands otherwise.
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
  float* panels;  // of B: [n / kPanel][steps_of(k)][kPanel]
  float* a;       // [m, steps_of(k)] with kStrideA
};

#if defined(STRETTO_TARGET_PAIRS)
constexpr int kStepK = 2;  // numbers of k that a step takes
#else
constexpr int kStepK = 1;
#endif
constexpr std::int64_t steps_of(std::int64_t k) { return (k + kStepK - 1) / kStepK; }

// ---- packing: a panel holds kPanel columns of B as [k / 2][kPanel], zeros beyond n and k

#if defined(STRETTO_TARGET_PAIRS)

constexpr std::int64_t kDepth = 2 * kLanes;  // numbers of a vector of pairs

// The first `count` < kDepth numbers of a row as pairs that are not turned yet, `rest` beyond.
STRETTO_TARGET inline Floats some_pairs(const std::byte* p, std::int64_t count,
                                        std::uint16_t rest) {
  std::uint16_t padded[kDepth];
  std::fill_n(padded, kDepth, rest);
  std::memcpy(padded, p, static_cast<std::size_t>(count) * 2);
  return read<Floats>(padded);
}

STRETTO_TARGET inline Words widen_some_halves(const std::byte* p, std::int64_t count) {
  return (Words)(count >= kLanes ? widen_bf16(p) : widen_some<DType::kBF16>(p, count));
}

STRETTO_TARGET void pack_stored_rows(const TileDot& t, const BlockOfK& at, std::int64_t n0,
                                     std::int64_t count, float* panel) {
  const auto* from = static_cast<const std::byte*>(t.b) + (at.k0 * t.b_row_stride + n0) * 2;
  const std::ptrdiff_t stride = t.b_row_stride * 2;
  for (std::int64_t k = 0; k < at.k; k += 2, from += 2 * stride, panel += kPanel) {
    for (std::int64_t c = 0; c < kPanel; c += kLanes) {
      const std::int64_t rest = count - c;
      Words v = {};
      if (rest > 0) v = widen_some_halves(from + c * 2, rest);
      if (rest > 0 && k + 1 < at.k) v |= widen_some_halves(from + stride + c * 2, rest) >> 16;
      std::memcpy(panel + c, &v, sizeof(v));
    }
  }
}

// B^T is stored: k is contiguous.
STRETTO_TARGET void pack_stored_columns(const TileDot& t, const BlockOfK& at, std::int64_t n0,
                                        std::int64_t count, float* panel) {
  const std::ptrdiff_t stride = t.b_col_stride * 2;
  for (std::int64_t c = 0; c < kPanel; c += kLanes) {
    const auto* from = static_cast<const std::byte*>(t.b) + (n0 + c) * stride + at.k0 * 2;
    const std::int64_t columns = std::clamp<std::int64_t>(count - c, 0, kLanes);
    for (std::int64_t k = 0; k < at.k; k += kDepth) {
      Floats r[kLanes] = {};
      const std::int64_t depth = std::min(kDepth, at.k - k);
      if (columns == kLanes && depth == kDepth) {
#pragma GCC unroll 16
        for (int i = 0; i < kLanes; ++i) {
          const std::byte* p = from + i * stride + k * 2;
          __builtin_prefetch(p + kLanes * stride);  // pages apart, where the hardware does not look
          r[i] = read<Floats>(p);
        }
      } else {
        for (std::int64_t i = 0; i < columns; ++i) {
          const std::byte* p = from + i * stride + k * 2;
          r[i] = depth == kDepth ? read<Floats>(p) : some_pairs(p, depth, 0);
        }
      }
      transpose(r);
      const std::int64_t steps = steps_of(depth);
      float* to = panel + k / 2 * kPanel + c;
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; ++i) {
        const Floats v = turned(r[i]);
        if (i < steps) std::memcpy(to + i * kPanel, &v, sizeof(v));
      }
    }
  }
}

STRETTO_TARGET void pack_b(const TileDot& t, const BlockOfK& at, const BlockOfN& cols,
                           float* panels) {
  for (std::int64_t c = 0; c < cols.n; c += kPanel, panels += steps_of(at.k) * kPanel) {
    std::int64_t count = std::min<std::int64_t>(kPanel, cols.n - c);
    if (t.b_col_stride == 1) {
      pack_stored_rows(t, at, cols.n0 + c, count, panels);
    } else {
      pack_stored_columns(t, at, cols.n0 + c, count, panels);
    }
  }
}

// The number beyond an odd k is -0, whose product with B's zero changes no sum.
STRETTO_TARGET void pack_a(const TileDot& t, const BlockOfK& at, const BlockOfM& rows, float* to) {
  constexpr std::int64_t kAheadRows = 8;
  constexpr std::uint16_t kMinusZero = 0x8000;
  const std::ptrdiff_t stride = t.a_row_stride * 2;
  const auto* from = static_cast<const std::byte*>(t.a) + rows.m0 * stride + at.k0 * 2;
  for (std::int64_t r = 0; r < rows.m; ++r, from += stride, to += kStrideA) {
    for (std::int64_t k = 0; k < at.k; k += kDepth) {
      __builtin_prefetch(from + kAheadRows * stride + k * 2);
      const std::int64_t depth = std::min(kDepth, at.k - k);
      const Floats v = turned(depth == kDepth ? read<Floats>(from + k * 2)
                                              : some_pairs(from + k * 2, depth, kMinusZero));
      std::memcpy(to + k / 2, &v, sizeof(v));  // kStrideA leaves room
    }
  }
}

STRETTO_TARGET inline Floats add_step(Floats sum, Floats b, const float* a) {
  return add_pairs(sum, b, everywhere(a));
}

#else

template <DType kDType>
STRETTO_TARGET void pack_stored_rows(const TileDot& t, const BlockOfK& at, std::int64_t n0,
                                     std::int64_t count, float* panel) {
  constexpr auto kElement = static_cast<std::ptrdiff_t>(kBytes<kDType>);
  const auto* from = static_cast<const std::byte*>(t.b) + (at.k0 * t.b_row_stride + n0) * kElement;
  for (std::int64_t k = 0; k < at.k; ++k, from += t.b_row_stride * kElement, panel += kPanel) {
    for (std::int64_t c = 0; c < kPanel; c += kLanes) {
      std::int64_t rest = count - c;
      Floats v = {};
      if (rest >= kLanes) {
        v = widen<kDType>(from + c * kElement);
      } else if (rest > 0) {
        v = widen_some<kDType>(from + c * kElement, rest);
      }
      std::memcpy(panel + c, &v, sizeof(v));
    }
  }
}

// A corner where fewer than kLanes columns or k are left.
template <DType kDType>
STRETTO_TARGET void pack_corner(const std::byte* from, std::ptrdiff_t stride, std::int64_t columns,
                                std::int64_t depth, float* to) {
  Floats r[kLanes] = {};
  for (std::int64_t i = 0; i < columns; ++i) r[i] = widen_some<kDType>(from + i * stride, depth);
  transpose(r);
  for (std::int64_t i = 0; i < depth; ++i) std::memcpy(to + i * kPanel, &r[i], sizeof(Floats));
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
      Floats r[kLanes];
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; ++i) {
        const std::byte* p = from + i * stride + k * kElement;
        __builtin_prefetch(p + kLanes * stride);  // pages apart, where the hardware does not look
        r[i] = widen<kDType>(p);
      }
      transpose(r);
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; ++i)
        std::memcpy(panel + (k + i) * kPanel + c, &r[i], sizeof(Floats));
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
      Floats v = widen<kDType>(from + k * kElement);
      std::memcpy(to + k, &v, sizeof(v));
    }
    if (k == at.k) continue;
    Floats v = widen_some<kDType>(from + k * kElement, at.k - k);
    std::memcpy(to + k, &v, sizeof(v));  // kStrideA leaves room
  }
}

STRETTO_TARGET void pack_a(const TileDot& t, const BlockOfK& at, const BlockOfM& rows, float* to) {
  if (t.a_dtype == DType::kF32) return pack_a_of<DType::kF32>(t, at, rows, to);
  if (t.a_dtype == DType::kBF16) return pack_a_of<DType::kBF16>(t, at, rows, to);
  pack_a_of<DType::kF16>(t, at, rows, to);
}

#endif

// ---- a block of registers

struct Strip {
  float* acc;  // [rows, kPanel]
  std::ptrdiff_t acc_stride;
  const float* a;      // [rows, steps] with kStrideA
  const float* panel;  // [steps][kPanel]
  std::int64_t steps;
  bool fresh;  // acc holds nothing yet
};

#if !defined(STRETTO_TARGET_PAIRS)
STRETTO_TARGET inline Vec add_step(Vec sum, Vec b, const float* a) { return sum + b * *a; }
#endif

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
  for (std::int64_t step = 0; step < s.steps; ++step, ++a, panel += kPanel) {
    Vec b[kVectors];
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) b[v] = read<Vec>(panel + v * kWidth);
#pragma GCC unroll 16
    for (int r = 0; r < kR; ++r) {
#pragma GCC unroll 16
      for (int v = 0; v < kVectors; ++v) sum[r][v] = add_step(sum[r][v], b[v], a + r * kStrideA);
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
  // Strips of like height: one of few rows would wait for its own sums.
  const std::int64_t num_strips = (rows.m + kRows - 1) / kRows;
  const std::int64_t most = (rows.m + num_strips - 1) / num_strips;
  for (std::int64_t c = 0; c < cols.n; c += kPanel) {
    for (std::int64_t r = 0; r < rows.m; r += most) {
      std::int64_t height = std::min(most, rows.m - r);
      Strip strip{t.acc + (rows.m0 + r) * t.acc_stride + cols.n0 + c,
                  t.acc_stride,
                  packed.a + r * kStrideA,
                  packed.panels + c * steps_of(at.k),
                  steps_of(at.k),
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
    for (std::int64_t k0 = 0; k0 < t.k; k0 += kStepK * kTileK) {
      BlockOfK at{k0, std::min(kStepK * kTileK, t.k - k0)};
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
