// Rows of floats as e4m3, each with a scale that its elements are multiplied by.
#pragma once

#include "stretto/lang/program_builder.h"

namespace stretto {

struct QuantizedRows {
  Value rows;     // e4m3 [rows, cols]
  Value largest;  // of each row, before; f32 [rows, 1]
  Value scales() const;
};

// x [rows, cols]. Rows whose largest element is below `least` are scaled as if it were that.
QuantizedRows quantized_rows(ProgramBuilder& p, const Value& x, double least = 0x1p-100);

}  // namespace stretto
