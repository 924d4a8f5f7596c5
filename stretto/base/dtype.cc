#include "stretto/base/dtype.h"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <limits>

#include "stretto/base/errors.h"

namespace stretto {
namespace {

struct DTypeInfo {
  const char* name;
  const char* short_name;
  std::size_t bytes;
};

constexpr std::array<DTypeInfo, 10> kInfo = {{{"float32", "f32", 4},
                                              {"float16", "f16", 2},
                                              {"bfloat16", "bf16", 2},
                                              {"float8_e4m3fn", "f8e4m3", 1},
                                              {"float64", "f64", 8},
                                              {"int32", "i32", 4},
                                              {"int64", "i64", 8},
                                              {"uint8", "u8", 1},
                                              {"bool", "b1", 1},
                                              {"int8", "i8", 1}}};

const DTypeInfo& info(DType dtype) { return kInfo[static_cast<std::size_t>(dtype)]; }

// Narrows to float rounding to odd: an inexact result gets an odd last bit, so that a second
// rounding to fewer bits (at least two fewer) gives what rounding the double once would have given.
float narrow_to_odd(double value) {
  float nearest = static_cast<float>(value);
  if (static_cast<double>(nearest) == value || std::isnan(value)) return nearest;
  float towards_zero =
      std::fabs(nearest) > std::fabs(value) ? std::nextafter(nearest, 0.0f) : nearest;
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(towards_zero) | 1u);
}

// Converts like a cast, but saturates instead of being undefined outside the range; NaN becomes 0.
template <typename T>
T saturate(double value) {
  if (std::isnan(value)) return 0;
  if (value <= static_cast<double>(std::numeric_limits<T>::min()))
    return std::numeric_limits<T>::min();
  if (value >= static_cast<double>(std::numeric_limits<T>::max()))
    return std::numeric_limits<T>::max();
  return static_cast<T>(value);
}

}  // namespace

std::size_t size_bytes(DType dtype) { return info(dtype).bytes; }
const char* name(DType dtype) { return info(dtype).name; }
const char* short_name(DType dtype) { return info(dtype).short_name; }

DType parse_dtype(std::string_view text) {
  for (std::size_t i = 0; i < kInfo.size(); ++i) {
    if (text == kInfo[i].name || text == kInfo[i].short_name) return static_cast<DType>(i);
  }
  std::string known;
  for (const DTypeInfo& d : kInfo) known += fmt::format(" {} ({})", d.name, d.short_name);
  throw UserError(fmt::format("unknown dtype '{}'; known:{}", text, known));
}

float f16_to_f32(std::uint16_t v) {
  std::uint32_t sign = static_cast<std::uint32_t>(v & 0x8000u) << 16;
  std::uint32_t exponent = (v >> 10) & 0x1fu;
  std::uint32_t mantissa = v & 0x3ffu;
  if (exponent == 0x1f) return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13));
  if (exponent == 0) {
    float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
    return sign ? -magnitude : magnitude;
  }
  return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
}

std::uint16_t f32_to_f16(float v) {
  std::uint32_t bits = std::bit_cast<std::uint32_t>(v);
  std::uint16_t sign = static_cast<std::uint16_t>(bits >> 16) & 0x8000u;
  std::uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return sign | 0x7e00u;
  if (magnitude >= 0x47800000u) return sign | 0x7c00u;  // 65536 and more
  if (magnitude < 0x38800000u) {                        // below 2^-14: denormal
    // Between 0.5 and 1 a float counts in steps of 2^-24, which is the step of binary16's
    // denormals.
    float counted = std::bit_cast<float>(magnitude) + 0.5f;
    return sign | static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(counted) - 0x3f000000u);
  }
  magnitude += 0xfffu + ((magnitude >> 13) & 1u);  // a carry out of 65504 becomes infinity
  return sign | static_cast<std::uint16_t>((magnitude - (112u << 23)) >> 13);
}

float f8e4m3_to_f32(std::uint8_t v) {
  float sign = (v & 0x80) ? -1.0f : 1.0f;
  int exponent = (v >> 3) & 0xf;
  int mantissa = v & 7;
  if (exponent == 0xf && mantissa == 7) return std::nanf("");
  if (exponent == 0) return sign * std::ldexp(static_cast<float>(mantissa), -9);
  return sign * std::ldexp(static_cast<float>(8 + mantissa), exponent - 10);
}

std::uint8_t f32_to_f8e4m3(float v) {
  std::uint32_t bits = std::bit_cast<std::uint32_t>(v);
  std::uint8_t sign = static_cast<std::uint8_t>(bits >> 24) & 0x80u;
  std::uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return sign | 0x7fu;
  if (magnitude >= 0x43e00000u) return sign | 0x7eu;  // 448 and more saturate
  if (magnitude < 0x3c800000u) {                      // below 2^-6: denormal
    // Between 2^14 and 2^15 a float counts in steps of 2^-9, the step of e4m3's denormals.
    float counted = std::bit_cast<float>(magnitude) + 0x1p14f;
    return sign | static_cast<std::uint8_t>(std::bit_cast<std::uint32_t>(counted) - 0x46800000u);
  }
  magnitude += 0x7ffffu + ((magnitude >> 20) & 1u);
  return sign | static_cast<std::uint8_t>((magnitude - (120u << 23)) >> 20);
}

double load_element(DType dtype, const void* address) {
  auto read = [address]<typename T>(T value) {
    std::memcpy(&value, address, sizeof(T));
    return value;
  };
  switch (dtype) {
    case DType::kF32:
      return read(float{});
    case DType::kF16:
      return f16_to_f32(read(std::uint16_t{}));
    case DType::kBF16:
      return bf16_to_f32(read(std::uint16_t{}));
    case DType::kF8E4M3:
      return f8e4m3_to_f32(read(std::uint8_t{}));
    case DType::kF64:
      return read(double{});
    case DType::kI32:
      return read(std::int32_t{});
    case DType::kI64:
      return static_cast<double>(read(std::int64_t{}));
    case DType::kU8:
    case DType::kBool:
      return read(std::uint8_t{});
    case DType::kI8:
      return read(std::int8_t{});
  }
  throw InternalError("load_element: bad dtype");
}

void store_element(DType dtype, void* address, double value) {
  auto write = [address](auto v) { std::memcpy(address, &v, sizeof(v)); };
  switch (dtype) {
    case DType::kF32:
      return write(static_cast<float>(value));
    case DType::kF16:
      return write(f32_to_f16(narrow_to_odd(value)));
    case DType::kBF16:
      return write(f32_to_bf16(narrow_to_odd(value)));
    case DType::kF8E4M3:
      return write(f32_to_f8e4m3(narrow_to_odd(value)));
    case DType::kF64:
      return write(value);
    case DType::kI32:
      return write(saturate<std::int32_t>(value));
    case DType::kI64:
      return write(saturate<std::int64_t>(value));
    case DType::kU8:
      return write(saturate<std::uint8_t>(value));
    case DType::kBool:
      return write(static_cast<std::uint8_t>(value != 0));
    case DType::kI8:
      return write(saturate<std::int8_t>(value));
  }
  throw InternalError("store_element: bad dtype");
}

}  // namespace stretto
