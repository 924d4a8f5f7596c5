// Eight elements of a 16-bit or f32 array as f32, for the bodies that dot.h is made of; compiled
// once per instruction set as dot_small.h says. With STRETTO_TARGET_WIDENS, AVX2 and F16C are
// there.
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

constexpr int kLanes = 8;
using F8 = float __attribute__((vector_size(32)));
using U8 = std::uint32_t __attribute__((vector_size(32)));
using H8 = std::uint16_t __attribute__((vector_size(16)));

template <DType kDType>
inline constexpr std::size_t kBytes = kDType == DType::kF32 ? 4 : 2;

template <typename V>
STRETTO_TARGET inline V read(const void* p) {
  V v;
  std::memcpy(&v, p, sizeof(V));
  return v;
}

#if defined(STRETTO_TARGET_WIDENS)
STRETTO_TARGET inline F8 widen_bf16(const void* p) {
  __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(static_cast<const __m128i*>(p)));
  return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
}
STRETTO_TARGET inline F8 widen_f16(const void* p) {
  return _mm256_cvtph_ps(_mm_loadu_si128(static_cast<const __m128i*>(p)));
}
#else
STRETTO_TARGET inline F8 widen_bf16(const void* p) {
  return (F8)(__builtin_convertvector(read<H8>(p), U8) << 16);
}
STRETTO_TARGET inline F8 widen_f16(const void* p) {
  U8 v = __builtin_convertvector(read<H8>(p), U8);
  U8 sign = (v & 0x8000u) << 16, bits = (v & 0x7fffu) << 13;
  U8 finite = (U8)((F8)bits * 0x1p112f);
  U8 is_special = (U8)(bits >= 0x0f800000u);
  return (F8)(sign | finite | (is_special & 0x7f800000u));
}
#endif

template <DType kDType>
STRETTO_TARGET inline F8 widen(const std::byte* p) {
  if constexpr (kDType == DType::kF32) {
    return read<F8>(p);
  } else if constexpr (kDType == DType::kBF16) {
    return widen_bf16(p);
  } else {
    return widen_f16(p);
  }
}

// The first `count` < 8 elements, zeros after them.
template <DType kDType>
STRETTO_TARGET inline F8 widen_some(const std::byte* p, std::int64_t count) {
  std::byte padded[kLanes * kBytes<kDType>] = {};
  std::memcpy(padded, p, static_cast<std::size_t>(count) * kBytes<kDType>);
  return widen<kDType>(padded);
}

// r[i] becomes column i of the eight rows.
STRETTO_TARGET inline void transpose(F8 (&r)[8]) {
  F8 s[8];
#pragma GCC unroll 8
  for (int i = 0; i < 4; ++i) {
    s[2 * i] = __builtin_shufflevector(r[2 * i], r[2 * i + 1], 0, 8, 1, 9, 4, 12, 5, 13);
    s[2 * i + 1] = __builtin_shufflevector(r[2 * i], r[2 * i + 1], 2, 10, 3, 11, 6, 14, 7, 15);
  }
#pragma GCC unroll 8
  for (int i = 0; i < 2; ++i) {
    F8 *from = s + 4 * i, *to = r + 4 * i;
    to[0] = __builtin_shufflevector(from[0], from[2], 0, 1, 8, 9, 4, 5, 12, 13);
    to[1] = __builtin_shufflevector(from[0], from[2], 2, 3, 10, 11, 6, 7, 14, 15);
    to[2] = __builtin_shufflevector(from[1], from[3], 0, 1, 8, 9, 4, 5, 12, 13);
    to[3] = __builtin_shufflevector(from[1], from[3], 2, 3, 10, 11, 6, 7, 14, 15);
  }
#pragma GCC unroll 8
  for (int i = 0; i < 4; ++i) {
    F8 low = r[i], high = r[i + 4];
    s[i] = __builtin_shufflevector(low, high, 0, 1, 2, 3, 8, 9, 10, 11);
    s[i + 4] = __builtin_shufflevector(low, high, 4, 5, 6, 7, 12, 13, 14, 15);
  }
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) r[i] = s[i];
}

}  // namespace
}  // namespace stretto::kernels::STRETTO_TARGET_NAME
