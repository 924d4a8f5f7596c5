// Loops that no operator of the catalog has, each a tile program of a few lines: what the passes
// and the generator make of programs of a user's own. The tests prove them, run them and compile
// them for a GPU; `gpu_bench loops` measures them against their rooflines.
//
// Eight were there while the passes were written: orders of instructions were added for them, and
// their tiles and options were chosen by measuring (docs/performance/loops.md). Six are held out:
// written later, once each, with no change to a pass or to their tiles after a measurement.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "stretto/testing/harness/op_case.h"

namespace stretto::loops {

// Rows, columns and summed length; what each loop makes of them is in its summary. Rows of bf16
// tensors must be multiples of 16 bytes for TMA, so n and k are multiples of 8.
struct LoopShape {
  std::int64_t m = 0, n = 0, k = 0;
};

struct Loop {
  const char* name;
  const char* summary;
  LoopShape small;  // ragged in every dimension
  LoopShape large;  // fills a GPU
  // With an extent m, of which the shape gives the bound, on `workers` SMs.
  std::function<Program(const LoopShape&, int workers)> program;
  // Random inputs and what fp64 arithmetic makes of them, where `rows` of the m rows exist.
  std::function<OpCase(Program, const LoopShape&, std::int64_t rows, std::uint64_t seed)> make_case;
  double flops = 0;  // of the large shape, on the tensor core; 0: memory is what it needs
};

// Two chained dots, gathered operand, scaled dot, reduction, transposed operand, masked ragged
// edge, register-A dot, elementwise chain.
const std::vector<Loop>& all_loops();

// Held out: two dots around a square, sum as right operand, gathered right operand, maxima beside a
// product, normalised rows, banded operand. Who changes a pass or a tile for one of them moves it
// to all_loops().
const std::vector<Loop>& held_out_loops();

// `rows` rows out of `count`, some of them -1: what the gathered loop reads as its index.
Values random_rows(std::int64_t rows, std::int64_t count, std::uint64_t seed);

// Behind all_loops().
Program chained(const LoopShape& shape, int workers);
Program gathered(const LoopShape& shape, int workers);
Program scaled(const LoopShape& shape, int workers);
Program reduction(const LoopShape& shape, int workers);
Program transposed(const LoopShape& shape, int workers);
Program triangular(const LoopShape& shape, int workers);
Program register_a(const LoopShape& shape, int workers);
Program elementwise(const LoopShape& shape, int workers);

// Behind held_out_loops().
inline constexpr double kNormEps = 1e-6;
Program squared(const LoopShape& shape, int workers);
Program right_sum(const LoopShape& shape, int workers);
Program gathered_right(const LoopShape& shape, int workers);
Program maxima(const LoopShape& shape, int workers);
Program normalised(const LoopShape& shape, int workers);
Program banded(const LoopShape& shape, int workers);

}  // namespace stretto::loops
