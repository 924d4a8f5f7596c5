// Memory of every rank filled with normally distributed values, and the comparison of two results.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "stretto/gpu/gpu_world.h"

namespace stretto::bench {

// bf16 values of mean 0 and deviation 1, the same sequence over and over; each fill goes on where
// the one before it stopped, so that no two ranks or tensors are alike.
class RandomFill {
 public:
  RandomFill(const GpuWorld& world, std::uint64_t seed);

  // `bytes` on every rank, other values on each.
  SymmetricGpuMemory allocate(std::size_t bytes);

 private:
  const GpuWorld& world_;
  SymmetricGpuMemory pool_;
  std::size_t from_ = 0;
};

// `bytes` on every rank, NaN everywhere.
SymmetricGpuMemory allocate_poisoned(const GpuWorld& world, std::size_t bytes);
void poison(const GpuWorld& world, const SymmetricGpuMemory& memory);

// |got - want| <= relative * |want| + absolute.
struct Tolerance {
  double relative = 0, absolute = 0;
};

// "" or the first element on any rank in which bf16 matrices [.., n] differ by more than allowed;
// NaN differs from everything.
std::string compare_bf16(const GpuWorld& world, const SymmetricGpuMemory& got,
                         const SymmetricGpuMemory& want, std::int64_t n, Tolerance tolerance);

}  // namespace stretto::bench
