#include "stretto/base/dtype.h"

#include <fmt/format.h>

#include <array>
#include <cmath>

#include "stretto/base/errors.h"

namespace stretto {
namespace {

struct DTypeInfo {
  const char* name;
  const char* short_name;
  std::size_t bytes;
};

constexpr std::array<DTypeInfo, 8> kInfo = {{{"float32", "f32", 4},
                                             {"float16", "f16", 2},
                                             {"bfloat16", "bf16", 2},
                                             {"float8_e4m3fn", "f8e4m3", 1},
                                             {"int32", "i32", 4},
                                             {"int64", "i64", 8},
                                             {"uint8", "u8", 1},
                                             {"bool", "b1", 1}}};

const DTypeInfo& info(DType dtype) { return kInfo[static_cast<std::size_t>(dtype)]; }

// Rounds |v| to a small float with the given mantissa and smallest exponent; returns the value as float.
float round_to(float v, int mantissa_bits, int min_exponent) {
  if (v == 0 || !std::isfinite(v)) return v;
  int exponent = std::max(std::ilogb(v), min_exponent);
  float quantum = std::ldexp(1.0f, exponent - mantissa_bits);
  return std::nearbyint(v / quantum) * quantum;
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
  std::uint16_t sign = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(v) >> 16) & 0x8000u;
  if (std::isnan(v)) return sign | 0x7e00u;
  float magnitude = round_to(std::fabs(v), 10, -14);
  if (magnitude > 65504.0f) return sign | 0x7c00u;
  if (magnitude < 0x1p-14f) return sign | static_cast<std::uint16_t>(magnitude * 0x1p24f);
  std::uint32_t bits = std::bit_cast<std::uint32_t>(magnitude);
  return sign | static_cast<std::uint16_t>((((bits >> 23) - 112) << 10) | ((bits >> 13) & 0x3ffu));
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
  std::uint8_t sign = std::signbit(v) ? 0x80 : 0;
  if (std::isnan(v)) return sign | 0x7f;
  float magnitude = round_to(std::fabs(v), 3, -6);
  if (magnitude >= 448.0f) return sign | 0x7e;
  if (magnitude < 0x1p-6f) return sign | static_cast<std::uint8_t>(magnitude * 0x1p9f);
  int exponent = std::ilogb(magnitude);
  int mantissa = static_cast<int>(std::ldexp(magnitude, 3 - exponent)) - 8;
  return sign | static_cast<std::uint8_t>(((exponent + 7) << 3) | mantissa);
}

double load_element(DType dtype, const void* address) {
  auto read = [address]<typename T>(T value) {
    std::memcpy(&value, address, sizeof(T));
    return value;
  };
  switch (dtype) {
    case DType::kF32: return read(float{});
    case DType::kF16: return f16_to_f32(read(std::uint16_t{}));
    case DType::kBF16: return bf16_to_f32(read(std::uint16_t{}));
    case DType::kF8E4M3: return f8e4m3_to_f32(read(std::uint8_t{}));
    case DType::kI32: return read(std::int32_t{});
    case DType::kI64: return static_cast<double>(read(std::int64_t{}));
    case DType::kU8:
    case DType::kBool: return read(std::uint8_t{});
  }
  throw InternalError("load_element: bad dtype");
}

void store_element(DType dtype, void* address, double value) {
  auto write = [address](auto v) { std::memcpy(address, &v, sizeof(v)); };
  switch (dtype) {
    case DType::kF32: return write(static_cast<float>(value));
    case DType::kF16: return write(f32_to_f16(static_cast<float>(value)));
    case DType::kBF16: return write(f32_to_bf16(static_cast<float>(value)));
    case DType::kF8E4M3: return write(f32_to_f8e4m3(static_cast<float>(value)));
    case DType::kI32: return write(static_cast<std::int32_t>(value));
    case DType::kI64: return write(static_cast<std::int64_t>(value));
    case DType::kU8: return write(static_cast<std::uint8_t>(value));
    case DType::kBool: return write(static_cast<std::uint8_t>(value != 0));
  }
  throw InternalError("store_element: bad dtype");
}

}  // namespace stretto
