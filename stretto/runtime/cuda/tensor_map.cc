#include "stretto/runtime/cuda/tensor_map.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "stretto/base/errors.h"
#include "stretto/runtime/cuda/driver.h"

namespace stretto::cuda {
namespace {

constexpr std::size_t kMaxRank = 5;
constexpr std::int64_t kMaxBox = 256;
constexpr std::int64_t kMaxExtent = std::int64_t{1} << 32;
constexpr std::int64_t kMaxStrideBytes = std::int64_t{1} << 40;
constexpr std::int64_t kGranule = 16;  // bytes: addresses, strides and box rows

CUtensorMapDataType tensor_map_type(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return CU_TENSOR_MAP_DATA_TYPE_FLOAT32;
    case DType::kF16:
      return CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
    case DType::kBF16:
      return CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
    case DType::kF64:
      return CU_TENSOR_MAP_DATA_TYPE_FLOAT64;
    case DType::kI32:
      return CU_TENSOR_MAP_DATA_TYPE_INT32;
    case DType::kI64:
      return CU_TENSOR_MAP_DATA_TYPE_INT64;
    case DType::kF8E4M3:
    case DType::kU8:
    case DType::kI8:
    case DType::kBool:
      return CU_TENSOR_MAP_DATA_TYPE_UINT8;
  }
  throw InternalError("tensor map: unknown dtype");
}

std::int64_t span_bytes(Swizzle swizzle) {
  switch (swizzle) {
    case Swizzle::kNone:
      return 0;
    case Swizzle::k32B:
      return 32;
    case Swizzle::k64B:
      return 64;
    case Swizzle::k128B:
      return 128;
  }
  throw InternalError("tensor map: unknown swizzle");
}

std::vector<std::int64_t> strides_of(const TensorMapDesc& desc) {
  if (!desc.strides.empty()) return desc.strides;
  std::vector<std::int64_t> strides(desc.shape.size(), 1);
  for (std::size_t d = strides.size(); d-- > 1;) strides[d - 1] = strides[d] * desc.shape[d];
  return strides;
}

}  // namespace

std::string TensorMapDesc::to_string() const {
  return fmt::format("{} [{}] strides [{}] box [{}] swizzle {}", name(dtype),
                     fmt::join(shape, ", "), fmt::join(strides_of(*this), ", "),
                     fmt::join(box, ", "), span_bytes(swizzle));
}

void check_tensor_map(const TensorMapDesc& desc) {
  auto require = [&](bool holds, const char* rule) {
    if (!holds) throw InternalError(fmt::format("tensor map: {} ({})", rule, desc.to_string()));
  };
  std::size_t rank = desc.shape.size();
  require(rank >= 1 && rank <= kMaxRank, "1 to 5 dimensions");
  require(desc.box.size() == rank, "the box has the tensor's dimensions");
  require(desc.strides.empty() || desc.strides.size() == rank, "one stride per dimension");
  require(std::all_of(desc.shape.begin(), desc.shape.end(),
                      [](std::int64_t n) { return n >= 1 && n <= kMaxExtent; }),
          "extents are 1 to 2^32");
  require(std::all_of(desc.box.begin(), desc.box.end(),
                      [](std::int64_t n) { return n >= 1 && n <= kMaxBox; }),
          "box extents are 1 to 256");
  require(desc.address % kGranule == 0, "the address is divisible by 16");
  auto bytes = static_cast<std::int64_t>(size_bytes(desc.dtype));
  std::vector<std::int64_t> strides = strides_of(desc);
  require(strides.back() == 1, "the innermost stride is 1");
  for (std::size_t d = 0; d + 1 < rank; ++d) {
    require(strides[d] >= 0 && strides[d] < kMaxStrideBytes / bytes,
            "strides are below 2^40 bytes");
    require(strides[d] * bytes % kGranule == 0, "strides are multiples of 16 bytes");
  }
  std::int64_t row = desc.box.back() * bytes;
  require(row % kGranule == 0, "a row of the box is a multiple of 16 bytes");
  require(desc.swizzle == Swizzle::kNone || row <= span_bytes(desc.swizzle),
          "a row of the box fits into the swizzle's span");
}

TensorMap encode_tensor_map(const TensorMapDesc& desc) {
  check_tensor_map(desc);
  std::size_t rank = desc.shape.size();
  std::vector<std::int64_t> strides = strides_of(desc);
  std::uint64_t extents[kMaxRank], stride_bytes[kMaxRank];
  std::uint32_t box[kMaxRank], steps[kMaxRank];
  for (std::size_t i = 0; i < rank; ++i) {  // the driver's order: innermost first
    std::size_t d = rank - 1 - i;
    extents[i] = static_cast<std::uint64_t>(desc.shape[d]);
    box[i] = static_cast<std::uint32_t>(desc.box[d]);
    steps[i] = 1;
    // The innermost stride is left out of the driver's list.
    if (i > 0) {
      stride_bytes[i - 1] = static_cast<std::uint64_t>(strides[d]) * size_bytes(desc.dtype);
    }
  }
  TensorMap map{};
  CUresult result = driver().tensor_map_encode_tiled(
      &map, tensor_map_type(desc.dtype), static_cast<std::uint32_t>(rank),
      reinterpret_cast<void*>(desc.address), extents, stride_bytes, box, steps,
      CU_TENSOR_MAP_INTERLEAVE_NONE, static_cast<CUtensorMapSwizzle>(desc.swizzle),
      static_cast<CUtensorMapL2promotion>(desc.l2_promotion), CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) check(result, "cuTensorMapEncodeTiled: " + desc.to_string());
  return map;
}

}  // namespace stretto::cuda
