// The matrix instructions have one operand per accumulator register, so each shape needs a function
// of its own. Only those that a kernel uses are written into it.
#pragma once

#include <string>

namespace stretto {

enum class WgmmaType { kBF16, kF16, kE4M3 };

// Device text: Wgmma<T, n> with ss<trans_a, trans_b>(lo, hi, a, b, keep) and, for 16-bit types,
// rs<trans_b>(...). lo and hi are the accumulators of rows r and r + 8, n / 4 floats each; `keep`
// false starts from zero. n: 8, 16, ... 256.
std::string wgmma_text(WgmmaType type, int n);

}  // namespace stretto
