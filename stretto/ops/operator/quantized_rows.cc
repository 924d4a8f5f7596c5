#include "stretto/ops/operator/quantized_rows.h"

namespace stretto {
namespace {

constexpr double kLargest = 448;  // of e4m3

}  // namespace

QuantizedRows quantized_rows(ProgramBuilder& p, const Value& x, double least) {
  Value wide = cast(x, DType::kF32);
  Value largest = maximum(row_max(abs(wide)), p.full(DType::kF32, 1, 1, least));
  return {.rows = cast(wide * (p.full(DType::kF32, 1, 1, kLargest) / largest), DType::kF8E4M3),
          .largest = largest};
}

Value QuantizedRows::scales() const { return largest * (1 / kLargest); }

}  // namespace stretto
