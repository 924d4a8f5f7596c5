// Element types, their sizes, their names (PyTorch's, with short forms), and conversions of the 16-
// and 8-bit floats.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

namespace stretto {

enum class DType : std::uint8_t { kF32, kF16, kBF16, kF8E4M3, kF64, kI32, kI64, kU8, kBool, kI8 };

std::size_t size_bytes(DType dtype);
const char* name(DType dtype);        // "float32"
const char* short_name(DType dtype);  // "f32"
// Accepts both spellings; throws UserError naming the accepted ones.
DType parse_dtype(std::string_view text);
inline bool is_float(DType d) { return d <= DType::kF64; }
// In what floats of `d` are computed with and added up: double for doubles, else f32
// (docs/decisions/0010-doubles-on-cpu-ranks.md).
inline DType sum_dtype(DType d) { return d == DType::kF64 ? DType::kF64 : DType::kF32; }

// bfloat16: the upper half of a float32; conversion rounds to nearest even.
inline float bf16_to_f32(std::uint16_t v) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(v) << 16);
}
inline std::uint16_t f32_to_bf16(float v) {
  std::uint32_t bits = std::bit_cast<std::uint32_t>(v);
  if ((bits & 0x7fffffffu) > 0x7f800000u)
    return static_cast<std::uint16_t>((bits >> 16) | 0x40u);  // quiet NaN
  return static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

// IEEE binary16, round to nearest even; overflow goes to infinity.
float f16_to_f32(std::uint16_t v);
std::uint16_t f32_to_f16(float v);

// OCP fp8 e4m3 (no infinity, NaN = 0x7f), round to nearest even, saturating at 448.
float f8e4m3_to_f32(std::uint8_t v);
std::uint8_t f32_to_f8e4m3(float v);

// One element of any dtype as double, exact up to 2^53. Storing rounds once (floats), or truncates
// and saturates (whole numbers), of which NaN is 0.
double load_element(DType dtype, const void* address);
void store_element(DType dtype, void* address, double value);

}  // namespace stretto
