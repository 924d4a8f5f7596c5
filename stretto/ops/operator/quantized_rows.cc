#include "stretto/ops/operator/quantized_rows.h"

#include <limits>

namespace stretto {
namespace {

constexpr double kLargestE4M3 = 448, kLargestInt8 = 127, kLeast = 0x1p-100;

}  // namespace

QuantizedRows quantized_rows(ProgramBuilder& p, const Value& x, double least) {
  Value wide = cast(x, DType::kF32);
  Value largest = maximum(row_max(abs(wide)), p.full(DType::kF32, 1, 1, least));
  return {.rows = cast(wide * (p.full(DType::kF32, 1, 1, kLargestE4M3) / largest), DType::kF8E4M3),
          .largest = largest,
          .becomes = kLargestE4M3};
}

QuantizedRows int8_rows(ProgramBuilder& p, const Value& x) {
  Value wide = cast(x, DType::kF32);
  // Maxima leave NaN out.
  Value sizes = where(wide == wide, abs(wide), std::numeric_limits<double>::infinity());
  Value largest = maximum(row_max(sizes), p.full(DType::kF32, 1, 1, kLeast));
  Value scaled = wide * (p.full(DType::kF32, 1, 1, kLargestInt8) / largest);
  return {.rows = cast(round(scaled), DType::kI8), .largest = largest, .becomes = kLargestInt8};
}

Value QuantizedRows::scales() const { return largest * (1 / becomes); }

}  // namespace stretto
