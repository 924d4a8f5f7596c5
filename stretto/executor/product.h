// Products of tiles on the CPU executor, of which only what lies inside of the tensors adds.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "stretto/executor/code.h"
#include "stretto/executor/register_tile.h"

namespace stretto {

// A factor of a dot: its valid rows and columns [lo, hi), the rest being zero.
struct Factor {
  TileRef tile;  // the valid part
  std::int64_t r0, r1, c0, c1;
};

inline Factor flipped(const Factor& f) { return {transposed(f.tile), f.c0, f.c1, f.r0, f.r1}; }

struct Product {
  const DotCode& code;
  Factor left, right;
};
// Into the register that the code names. `scratch`: room for the product where it is scaled.
void multiply(const Product& product, std::span<Register> regs, std::byte* scratch);

}  // namespace stretto
