// The copy engine's view of a tensor in global memory: which box of it one bulk copy moves, and how
// the box lies in shared memory (PTX ISA, "cp.async.bulk.tensor"). Passed to a kernel by value.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "stretto/base/dtype.h"
#include "stretto/runtime/cuda/driver_types.h"

namespace stretto::cuda {

using TensorMap = CUtensorMap;

// How 16-byte pieces of a box's rows are permuted in shared memory, named by the span of bytes
// within which they move. The box's innermost extent is then at most that span.
enum class Swizzle { kNone, k32B, k64B, k128B };

// How much the L2 cache fetches at least.
enum class L2Promotion { kNone, k64B, k128B, k256B };

// Lists are outermost first, as shapes are everywhere in stretto; the innermost stride is 1.
struct TensorMapDesc {
  DType dtype = DType::kBF16;
  CUdeviceptr address = 0;            // of the first element, divisible by 16
  std::vector<std::int64_t> shape;    // elements; 1 to 5 dimensions
  std::vector<std::int64_t> strides;  // elements; empty: dense, row-major
  std::vector<std::int64_t> box;      // elements that one copy moves, 1 to 256 in each dimension
  Swizzle swizzle = Swizzle::kNone;
  L2Promotion l2_promotion = L2Promotion::k256B;

  std::string to_string() const;
};

// Elements outside the tensor read as zero and are not written. InternalError naming the rule that
// the description breaks; DeviceError without a driver.
TensorMap encode_tensor_map(const TensorMapDesc& desc);

// InternalError unless the description keeps the rules of cuTensorMapEncodeTiled; needs no driver.
void check_tensor_map(const TensorMapDesc& desc);

}  // namespace stretto::cuda
