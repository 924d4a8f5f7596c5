// Eight loops that no operator of the catalog has, each a tile program of a few lines: what the
// passes and the generator make of a program that nobody tuned them for. The tests prove them, run
// them and compile them for a GPU; `gpu_bench loops` measures them against their rooflines.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "stretto/ops/harness/op_case.h"

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

}  // namespace stretto::loops
