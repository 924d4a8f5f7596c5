// Operands of a product in several sets, filled with normally distributed values, and the
// comparison of two results.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bench/gpu/products/gemm_shapes.h"
#include "stretto/gpu/gpu_world.h"
#include "stretto/launch/executable.h"
#include "stretto/runtime/cuda/cublaslt.h"

namespace stretto::bench {

class GemmBuffers {
 public:
  // As many sets as it takes to pass the L2 cache twice. Results are poisoned (NaN).
  GemmBuffers(const GpuWorld& world, const GemmShape& shape, DType dtype, std::uint64_t seed);

  int num_sets() const { return static_cast<int>(sets_.size()); }
  // Ours and the library's work on the same factors and leave their results in different places.
  Args ours(int set, const Program& program) const;
  std::vector<std::int64_t> extents() const { return {shape_.m}; }
  const std::vector<cuda::CublasLtOperands>& theirs() const { return theirs_; }

  void poison_ours(int set) const;
  // "" or the first element of set `set` in which the two results differ by more than rounding: of
  // the dtype once, and of sums of k products in fp32.
  std::string compare(int set) const;

 private:
  struct Set {
    cuda::DeviceMemory a, b, ours, theirs;
  };

  const GpuWorld& world_;
  GemmShape shape_;
  DType dtype_;
  std::vector<Set> sets_;
  std::vector<cuda::CublasLtOperands> theirs_;
};

}  // namespace stretto::bench
