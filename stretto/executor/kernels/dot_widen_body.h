// A vector's worth of a 16-bit or f32 array as f32, for the bodies that dot.h is made of; compiled
// once per instruction set: the including file says how many floats a vector has (STRETTO_LANES:
// 16, with AVX-512, or 8), and whether AVX2 and F16C are there (STRETTO_TARGET_WIDENS). With
// STRETTO_TARGET_PAIRS the processor multiplies pairs of bf16, in 16 lanes.
#pragma once

#if defined(STRETTO_TARGET_WIDENS)
#include <immintrin.h>
#endif

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "stretto/base/dtype.h"

namespace stretto::kernels::STRETTO_TARGET_NAME {
namespace {

constexpr int kLanes = STRETTO_LANES;
using Floats = float __attribute__((vector_size(4 * kLanes)));
using Words = std::uint32_t __attribute__((vector_size(4 * kLanes)));
using Halves = std::uint16_t __attribute__((vector_size(2 * kLanes)));

template <DType kDType>
inline constexpr std::size_t kBytes = kDType == DType::kF32 ? 4 : 2;

template <typename V>
STRETTO_TARGET inline V read(const void* p) {
  V v;
  std::memcpy(&v, p, sizeof(V));
  return v;
}

#if STRETTO_LANES == 16
STRETTO_TARGET inline Floats widen_bf16(const void* p) {
  __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(static_cast<const __m256i*>(p)));
  return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}
STRETTO_TARGET inline Floats widen_f16(const void* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(static_cast<const __m256i*>(p)));
}
#elif defined(STRETTO_TARGET_WIDENS)
STRETTO_TARGET inline Floats widen_bf16(const void* p) {
  __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(static_cast<const __m128i*>(p)));
  return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
}
STRETTO_TARGET inline Floats widen_f16(const void* p) {
  return _mm256_cvtph_ps(_mm_loadu_si128(static_cast<const __m128i*>(p)));
}
#else
STRETTO_TARGET inline Floats widen_bf16(const void* p) {
  return (Floats)(__builtin_convertvector(read<Halves>(p), Words) << 16);
}
STRETTO_TARGET inline Floats widen_f16(const void* p) {
  Words v = __builtin_convertvector(read<Halves>(p), Words);
  Words sign = (v & 0x8000u) << 16, bits = (v & 0x7fffu) << 13;
  Words finite = (Words)((Floats)bits * 0x1p112f);
  Words is_special = (Words)(bits >= 0x0f800000u);
  return (Floats)(sign | finite | (is_special & 0x7f800000u));
}
#endif

template <DType kDType>
STRETTO_TARGET inline Floats widen(const std::byte* p) {
  if constexpr (kDType == DType::kF32) {
    return read<Floats>(p);
  } else if constexpr (kDType == DType::kBF16) {
    return widen_bf16(p);
  } else {
    return widen_f16(p);
  }
}

// The first `count` < kLanes elements, zeros after them.
template <DType kDType>
STRETTO_TARGET inline Floats widen_some(const std::byte* p, std::int64_t count) {
  std::byte padded[kLanes * kBytes<kDType>] = {};
  std::memcpy(padded, p, static_cast<std::size_t>(count) * kBytes<kDType>);
  return widen<kDType>(padded);
}

#if STRETTO_LANES == 16
// r[i] becomes column i of the rows.
STRETTO_TARGET inline void transpose(Floats (&r)[16]) {
  Floats s[16];
#pragma GCC unroll 16
  for (int i = 0; i < 16; i += 2) {
    s[i] = __builtin_shufflevector(r[i], r[i + 1], 0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28,
                                   13, 29);
    s[i + 1] = __builtin_shufflevector(r[i], r[i + 1], 2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27,
                                       14, 30, 15, 31);
  }
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) {  // r[i]: columns i % 4 + 0, 4, 8, 12 of four rows
    const int from = i / 4 * 4 + i % 4 / 2;
    r[i] = i % 2 == 0 ? __builtin_shufflevector(s[from], s[from + 2], 0, 1, 16, 17, 4, 5, 20, 21, 8,
                                                9, 24, 25, 12, 13, 28, 29)
                      : __builtin_shufflevector(s[from], s[from + 2], 2, 3, 18, 19, 6, 7, 22, 23,
                                                10, 11, 26, 27, 14, 15, 30, 31);
  }
#pragma GCC unroll 16
  for (int half = 0; half < 4; half += 2) {
#pragma GCC unroll 16
    for (int j = 0; j < 4; ++j) {
      const Floats &a = r[4 * half + j], &b = r[4 * half + 4 + j];
      s[4 * half + j] =
          __builtin_shufflevector(a, b, 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27);
      s[4 * half + 4 + j] =
          __builtin_shufflevector(a, b, 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31);
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < 8;
       ++i) {  // columns 0 to 3 and 8 to 11 of eight rows, then 4 to 7 and 12 to 15
    const Floats a = s[i], b = s[8 + i];
    r[i] = __builtin_shufflevector(a, b, 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27);
    r[8 + i] =
        __builtin_shufflevector(a, b, 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31);
  }
}
#else
// r[i] becomes column i of the rows.
STRETTO_TARGET inline void transpose(Floats (&r)[8]) {
  Floats s[8];
#pragma GCC unroll 8
  for (int i = 0; i < 4; ++i) {
    s[2 * i] = __builtin_shufflevector(r[2 * i], r[2 * i + 1], 0, 8, 1, 9, 4, 12, 5, 13);
    s[2 * i + 1] = __builtin_shufflevector(r[2 * i], r[2 * i + 1], 2, 10, 3, 11, 6, 14, 7, 15);
  }
#pragma GCC unroll 8
  for (int i = 0; i < 2; ++i) {
    Floats *from = s + 4 * i, *to = r + 4 * i;
    to[0] = __builtin_shufflevector(from[0], from[2], 0, 1, 8, 9, 4, 5, 12, 13);
    to[1] = __builtin_shufflevector(from[0], from[2], 2, 3, 10, 11, 6, 7, 14, 15);
    to[2] = __builtin_shufflevector(from[1], from[3], 0, 1, 8, 9, 4, 5, 12, 13);
    to[3] = __builtin_shufflevector(from[1], from[3], 2, 3, 10, 11, 6, 7, 14, 15);
  }
#pragma GCC unroll 8
  for (int i = 0; i < 4; ++i) {
    Floats low = r[i], high = r[i + 4];
    s[i] = __builtin_shufflevector(low, high, 0, 1, 2, 3, 8, 9, 10, 11);
    s[i + 4] = __builtin_shufflevector(low, high, 4, 5, 6, 7, 12, 13, 14, 15);
  }
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) r[i] = s[i];
}

#endif

#if defined(STRETTO_TARGET_PAIRS)
// Two neighbours of k as the processor takes them: it adds the product of the high halves first.
STRETTO_TARGET inline Floats turned(Floats pairs) {
  return _mm512_castsi512_ps(_mm512_rol_epi32(_mm512_castps_si512(pairs), 16));
}
STRETTO_TARGET inline Floats add_pairs(Floats sum, Floats a, Floats b) {
  return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b);
}
STRETTO_TARGET inline Floats everywhere(const float* pair) {
  std::int32_t bits = 0;
  std::memcpy(&bits, pair, sizeof(bits));
  return _mm512_castsi512_ps(_mm512_set1_epi32(bits));
}
#endif

}  // namespace
}  // namespace stretto::kernels::STRETTO_TARGET_NAME
