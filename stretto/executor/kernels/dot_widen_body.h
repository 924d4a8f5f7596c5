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

}  // namespace
}  // namespace stretto::kernels::STRETTO_TARGET_NAME
