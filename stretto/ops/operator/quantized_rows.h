// Rows of floats as e4m3 or int8, each with a scale that its elements are multiplied by.
#pragma once

#include "stretto/lang/program_builder.h"

namespace stretto {

struct QuantizedRows {
  Value rows;      // e4m3 or int8 [rows, cols]
  Value largest;   // of each row, before; f32 [rows, 1]
  double becomes;  // what the largest becomes: 448 or 127
  Value scales() const;
};

// x [rows, cols] as e4m3. Rows whose largest element is below `least` are scaled as if it were
// that.
QuantizedRows quantized_rows(ProgramBuilder& p, const Value& x, double least = 0x1p-100);

// x [rows, cols] as int8, rounded to nearest even: elements times their scale are off by no more
// than largest / 254, but for float32's rounding. A row that has a NaN or an infinity gets an
// infinite scale and zeros, of which no product is a number.
QuantizedRows int8_rows(ProgramBuilder& p, const Value& x);

}  // namespace stretto
