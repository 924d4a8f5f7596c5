// Comparison of two results, ours and the libraries'.
#pragma once

#include <cstdint>
#include <string>

#include "stretto/gpu/gpu_world.h"
#include "stretto/ops/measure/random_fill.h"

namespace stretto::bench {

// |got - want| <= relative * |want| + absolute.
struct Tolerance {
  double relative = 0, absolute = 0;
  // Beside them so much of the sum of the magnitudes of what was added up: bf16 [P * rows, n] on
  // each rank, of which rank r's result has added all ranks' r-th rows.
  const SymmetricGpuMemory* terms = nullptr;
  double of_terms = 0;
};

// "" or the first element on any rank in which bf16 matrices [.., n] differ by more than allowed;
// NaN differs from everything.
std::string compare_bf16(const GpuWorld& world, const SymmetricGpuMemory& got,
                         const SymmetricGpuMemory& want, std::int64_t n, Tolerance tolerance);

}  // namespace stretto::bench
