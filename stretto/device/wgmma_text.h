// The matrix instructions have one operand per accumulator register, so each shape needs a function
// of its own. Only those that a kernel uses are written into it.
//
// One statement holds all instructions of a product, or up to kMostWgmmaSteps steps of them. What
// the compiler does for each statement's hundred operands it then does once, and the machine code
// of the loop is the same (docs/lab/shortfalls.md, 'First calls from PyTorch').
#pragma once

#include <compare>
#include <string>

namespace stretto {

enum class WgmmaType { kBF16, kF16, kE4M3 };

// Of one statement.
struct WgmmaShape {
  WgmmaType type = WgmmaType::kBF16;
  int n = 8;           // 8, 16, ... 256, without the columns of sums
  int blocks = 1;      // of 64 rows
  int steps = 1;       // of 16 along K, for 8-bit types of 32
  bool sums = false;   // eight columns more of 16-bit types, which get the sums of A's rows
  int first_sums = 0;  // sums: columns that an instruction of their own multiplies before the rest
  auto operator<=>(const WgmmaShape&) const = default;
};

inline constexpr int kMostWgmmaSteps = 8;

// Device text: Wgmma<T, n, blocks, steps> with ss<trans_a, trans_b>(acc, a, b, keep) and, for
// 16-bit types, rs<trans_b>(acc, a, from, b, keep). acc: a tile of two rows of n / 4 floats for
// each block; ss: a, descriptors by step and block; rs: a tile of A's registers, in each row of
// which the statement's begin at `from`; b: descriptors by step; `keep` false starts from zero. Of
// sums WgmmaWithSums<T, n, blocks, steps> with rs(acc, a, from, b, ones, keep), `ones` the
// descriptors of the columns from first_sums on and of the ones behind them.
std::string wgmma_text(const WgmmaShape& shape);

}  // namespace stretto
