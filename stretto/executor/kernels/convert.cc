#include "stretto/executor/kernels/convert.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <type_traits>

#include "stretto/base/errors.h"
#include "stretto/executor/kernels/dispatch.h"

namespace stretto::kernels {
namespace {

constexpr std::int64_t kChunk = 512;  // elements of an intermediate buffer on the stack

template <typename To, typename From, typename Map>
void map(void* dst, const void* src, std::int64_t count, Map one) {
  auto* to = static_cast<To*>(dst);
  const auto* from = static_cast<const From*>(src);
  run_vectorised([=]() STRETTO_INLINED {
    STRETTO_INDEPENDENT
    for (std::int64_t i = 0; i < count; ++i) to[i] = one(from[i]);
  });
}

// The functions below take no branches, so that a loop of them becomes vector instructions.

STRETTO_INLINED inline float decode_bf16(std::uint16_t v) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(v) << 16);
}

STRETTO_INLINED inline float decode_f16(std::uint16_t v) {
  std::uint32_t sign = (v & 0x8000u) << 16;
  std::uint32_t bits = (v & 0x7fffu) << 13;
  // Exact for denormals too: the product renormalises them.
  std::uint32_t finite = std::bit_cast<std::uint32_t>(std::bit_cast<float>(bits) * 0x1p112f);
  std::uint32_t special = bits | 0x7f800000u;
  return std::bit_cast<float>(sign | (bits >= 0x0f800000u ? special : finite));
}

STRETTO_INLINED inline float decode_f8e4m3(std::uint8_t v) {
  std::uint32_t sign = (v & 0x80u) << 24;
  std::uint32_t bits = (v & 0x7fu) << 20;
  std::uint32_t finite = std::bit_cast<std::uint32_t>(std::bit_cast<float>(bits) * 0x1p120f);
  return std::bit_cast<float>(sign | (bits == 0x07f00000u ? 0x7fc00000u : finite));
}

STRETTO_INLINED inline std::uint16_t encode_bf16(float v) {
  std::uint32_t bits = std::bit_cast<std::uint32_t>(v);
  std::uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  std::uint32_t quiet_nan = (bits >> 16) | 0x40u;
  return static_cast<std::uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? quiet_nan : rounded);
}

STRETTO_INLINED inline std::uint16_t encode_f16(float v) {
  std::uint32_t bits = std::bit_cast<std::uint32_t>(v);
  std::uint32_t sign = (bits >> 16) & 0x8000u, magnitude = bits & 0x7fffffffu;
  std::uint32_t normal = (magnitude + 0xfffu + ((magnitude >> 13) & 1u) - (112u << 23)) >> 13;
  // Between 0.5 and 1 a float counts in steps of 2^-24, the step of binary16's denormals.
  std::uint32_t denormal =
      std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - 0x3f000000u;
  std::uint32_t special = magnitude > 0x7f800000u ? 0x7e00u : 0x7c00u;
  std::uint32_t finite = magnitude < 0x38800000u ? denormal : normal;
  return static_cast<std::uint16_t>(sign | (magnitude >= 0x47800000u ? special : finite));
}

STRETTO_INLINED inline std::uint8_t encode_f8e4m3(float v) {
  std::uint32_t bits = std::bit_cast<std::uint32_t>(v);
  std::uint32_t sign = (bits >> 24) & 0x80u, magnitude = bits & 0x7fffffffu;
  std::uint32_t normal = (magnitude + 0x7ffffu + ((magnitude >> 20) & 1u) - (120u << 23)) >> 20;
  // Between 2^14 and 2^15 a float counts in steps of 2^-9, the step of e4m3's denormals.
  std::uint32_t denormal =
      std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + 0x1p14f) - 0x46800000u;
  std::uint32_t special = magnitude > 0x7f800000u ? 0x7fu : 0x7eu;
  std::uint32_t finite = magnitude < 0x3c800000u ? denormal : normal;
  return static_cast<std::uint8_t>(sign | (magnitude >= 0x43e00000u ? special : finite));
}

// Truncates and saturates; the bounds are the largest floats inside the type's range.
STRETTO_INLINED inline std::int32_t to_i32(float v) {
  std::int32_t inside = static_cast<std::int32_t>(std::min(std::max(v, -0x1p31f), 0x1.fffffep30f));
  return v != v ? 0 : v >= 0x1p31f ? std::numeric_limits<std::int32_t>::max() : inside;
}
STRETTO_INLINED inline std::int64_t to_i64(float v) {
  std::int64_t inside = static_cast<std::int64_t>(std::min(std::max(v, -0x1p63f), 0x1.fffffep62f));
  return v != v ? 0 : v >= 0x1p63f ? std::numeric_limits<std::int64_t>::max() : inside;
}
STRETTO_INLINED inline std::uint8_t to_u8(float v) {
  float inside = v > 0.0f ? v : 0.0f;  // NaN becomes 0
  return static_cast<std::uint8_t>(static_cast<std::int32_t>(std::min(inside, 255.0f)));
}

STRETTO_INLINED inline std::int8_t to_i8(float v) {
  float inside = v != v ? 0.0f : std::min(std::max(v, -128.0f), 127.0f);
  return static_cast<std::int8_t>(static_cast<std::int32_t>(inside));
}

// Keeps what the rounding to float dropped in the last bit, so that a second rounding to a narrower
// float gives what one rounding of the integer would have given.
float to_odd_float(std::int64_t v) {
  float nearest = static_cast<float>(v);
  // 2^63 is the only float that a 64-bit integer rounds to without fitting back.
  bool too_big = nearest == 0x1p63f;
  std::int64_t back = too_big ? 0 : static_cast<std::int64_t>(nearest);
  if (!too_big && back == v) return nearest;
  std::uint32_t bits = std::bit_cast<std::uint32_t>(nearest);
  bool away = too_big || (v > 0 ? back > v : back < v);
  return std::bit_cast<float>((away ? bits - 1 : bits) | 1u);
}

void decode_float(float* dst, DType dtype, const void* src, std::int64_t n) {
  auto of = [&]<typename T>(T, auto one) { map<float, T>(dst, src, n, one); };
  switch (dtype) {
    case DType::kF32:
      if (dst != src) std::memcpy(dst, src, static_cast<std::size_t>(n) * sizeof(float));
      return;
    case DType::kF16:
      return of(std::uint16_t{}, [](std::uint16_t v) STRETTO_INLINED { return decode_f16(v); });
    case DType::kBF16:
      return of(std::uint16_t{}, [](std::uint16_t v) STRETTO_INLINED { return decode_bf16(v); });
    case DType::kF8E4M3:
      return of(std::uint8_t{}, [](std::uint8_t v) STRETTO_INLINED { return decode_f8e4m3(v); });
    default:
      throw InternalError("convert: not a float dtype");
  }
}

void encode_float(DType dtype, void* dst, const float* src, std::int64_t n) {
  auto of = [&]<typename T>(T, auto one) { map<T, float>(dst, src, n, one); };
  switch (dtype) {
    case DType::kF32:
      if (dst != src) std::memcpy(dst, src, static_cast<std::size_t>(n) * sizeof(float));
      return;
    case DType::kF16:
      return of(std::uint16_t{}, [](float v) STRETTO_INLINED { return encode_f16(v); });
    case DType::kBF16:
      return of(std::uint16_t{}, [](float v) STRETTO_INLINED { return encode_bf16(v); });
    case DType::kF8E4M3:
      return of(std::uint8_t{}, [](float v) STRETTO_INLINED { return encode_f8e4m3(v); });
    case DType::kF64:
      throw InternalError("convert: doubles take another way");
    case DType::kI32:
      return of(std::int32_t{}, [](float v) STRETTO_INLINED { return to_i32(v); });
    case DType::kI64:
      return of(std::int64_t{}, [](float v) STRETTO_INLINED { return to_i64(v); });
    case DType::kU8:
      return of(std::uint8_t{}, [](float v) STRETTO_INLINED { return to_u8(v); });
    case DType::kBool:
      return of(std::uint8_t{}, [](float v) STRETTO_INLINED -> std::uint8_t { return v != 0.0f; });
    case DType::kI8:
      return of(std::int8_t{}, [](float v) STRETTO_INLINED { return to_i8(v); });
  }
}

template <typename From>
void from_integer(DType dtype, void* dst, const void* src, std::int64_t n) {
  constexpr bool kExact = sizeof(From) == 1;  // fits a float
  switch (dtype) {
    case DType::kF32:
      return map<float, From>(dst, src, n,
                              [](From v) STRETTO_INLINED { return static_cast<float>(v); });
    case DType::kI32:
      return map<std::int32_t, From>(dst, src, n, [](From v) STRETTO_INLINED {
        using Limits = std::numeric_limits<std::int32_t>;
        if constexpr (sizeof(From) == 8) v = std::clamp<From>(v, Limits::min(), Limits::max());
        return static_cast<std::int32_t>(v);
      });
    case DType::kI64:
      return map<std::int64_t, From>(
          dst, src, n, [](From v) STRETTO_INLINED { return static_cast<std::int64_t>(v); });
    case DType::kU8:
      return map<std::uint8_t, From>(dst, src, n, [](From v) STRETTO_INLINED {
        if constexpr (sizeof(From) > 1) v = std::clamp<From>(v, 0, 255);
        if constexpr (std::is_same_v<From, std::int8_t>) v = std::max<From>(v, 0);
        return static_cast<std::uint8_t>(v);
      });
    case DType::kI8:
      return map<std::int8_t, From>(dst, src, n, [](From v) STRETTO_INLINED {
        if constexpr (sizeof(From) > 1) v = std::clamp<From>(v, -128, 127);
        if constexpr (std::is_same_v<From, std::uint8_t>) v = std::min<From>(v, 127);
        return static_cast<std::int8_t>(v);
      });
    case DType::kBool:
      return map<std::uint8_t, From>(dst, src, n,
                                     [](From v) STRETTO_INLINED -> std::uint8_t { return v != 0; });
    default: {  // a narrow float
      const auto* from = static_cast<const From*>(src);
      auto* to = static_cast<std::byte*>(dst);
      float values[kChunk];
      for (std::int64_t at = 0; at < n; at += kChunk) {
        std::int64_t count = std::min(kChunk, n - at);
        for (std::int64_t i = 0; i < count; ++i) {
          values[i] = kExact ? static_cast<float>(from[at + i]) : to_odd_float(from[at + i]);
        }
        encode_float(dtype, to + at * static_cast<std::int64_t>(size_bytes(dtype)), values, count);
      }
    }
  }
}

// Doubles are for checking what other floats compute: one element at a time will do.
void convert_double(DType dst_dtype, void* dst, DType src_dtype, const void* src, std::int64_t n) {
  auto* to = static_cast<std::byte*>(dst);
  const auto* from = static_cast<const std::byte*>(src);
  for (std::int64_t i = 0; i < n; ++i) {
    store_element(dst_dtype, to, load_element(src_dtype, from));
    to += size_bytes(dst_dtype);
    from += size_bytes(src_dtype);
  }
}

}  // namespace

void convert(DType dst_dtype, void* dst, DType src_dtype, const void* src, std::int64_t count) {
  if (dst_dtype == src_dtype) {
    if (dst != src && count > 0)
      std::memcpy(dst, src, static_cast<std::size_t>(count) * size_bytes(src_dtype));
    return;
  }
  if (dst_dtype == DType::kF64 || src_dtype == DType::kF64)
    return convert_double(dst_dtype, dst, src_dtype, src, count);
  if (src_dtype == DType::kI32) return from_integer<std::int32_t>(dst_dtype, dst, src, count);
  if (src_dtype == DType::kI64) return from_integer<std::int64_t>(dst_dtype, dst, src, count);
  if (src_dtype == DType::kI8) return from_integer<std::int8_t>(dst_dtype, dst, src, count);
  if (!is_float(src_dtype)) return from_integer<std::uint8_t>(dst_dtype, dst, src, count);
  if (dst_dtype == DType::kF32)
    return decode_float(static_cast<float*>(dst), src_dtype, src, count);
  if (src_dtype == DType::kF32)
    return encode_float(dst_dtype, dst, static_cast<const float*>(src), count);
  float values[kChunk];
  for (std::int64_t at = 0; at < count; at += kChunk) {
    std::int64_t n = std::min(kChunk, count - at);
    auto step = [at](DType t) { return at * static_cast<std::int64_t>(size_bytes(t)); };
    decode_float(values, src_dtype, static_cast<const std::byte*>(src) + step(src_dtype), n);
    encode_float(dst_dtype, static_cast<std::byte*>(dst) + step(dst_dtype), values, n);
  }
}

void round_to(DType dtype, float* values, std::int64_t count) {
  auto rounded = [&](auto one) { map<float, float>(values, values, count, one); };
  switch (dtype) {
    case DType::kF16:
      return rounded([](float v) STRETTO_INLINED { return decode_f16(encode_f16(v)); });
    case DType::kBF16:
      return rounded([](float v) STRETTO_INLINED { return decode_bf16(encode_bf16(v)); });
    case DType::kF8E4M3:
      return rounded([](float v) STRETTO_INLINED { return decode_f8e4m3(encode_f8e4m3(v)); });
    default:
      return;
  }
}

}  // namespace stretto::kernels
