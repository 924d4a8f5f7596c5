// Memory of every rank filled with normally distributed values, for measurements: products of
// zeros take less power than products of data.
#pragma once

#include <cstdint>

#include "stretto/base/dtype.h"
#include "stretto/gpu/gpu_world.h"

namespace stretto {

// Values of mean 0 and deviation 1, the same sequence over and over; each fill goes on where the
// one before it stopped, so that no two ranks or tensors are alike.
class RandomFill {
 public:
  RandomFill(const GpuWorld& world, std::uint64_t seed, DType dtype = DType::kBF16);

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

}  // namespace stretto
