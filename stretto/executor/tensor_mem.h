// A tensor of the CPU executor as a launch sees it, and what of a region's tile lies inside it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "stretto/base/dtype.h"
#include "stretto/ir/limits.h"

namespace stretto {

// A tensor as this launch sees it.
struct TensorMem {
  DType dtype = DType::kF32;
  bool packet = false;
  int num_dims = 0;
  std::int64_t elem_bytes = 4;
  std::int64_t shape[kMaxTensorDims] = {};   // run-time
  std::int64_t stride[kMaxTensorDims] = {};  // elements
  std::vector<std::byte*> at;          // [world] this launch's slot; null where not addressable
};

// The part of a region's tile that lies inside the tensor: rows [r0, r1), columns [c0, c1) of the
// tile. `data` addresses element (r0, c0); packet tensors use `element`, its index, instead.
struct ClippedTile {
  const TensorMem* tensor = nullptr;
  int tensor_idx = -1, rank = 0;
  std::byte* data = nullptr;
  std::int64_t element = 0;
  std::int64_t rows = 0, cols = 0;  // of the whole tile
  std::int64_t r0 = 0, r1 = 0, c0 = 0, c1 = 0;
  std::int64_t row_stride = 0, col_stride = 0;  // elements
  std::int64_t origin[kMaxTensorDims] = {};           // tensor coordinates of (r0, c0)
  std::int64_t row_origin = 0, row_limit = 0;   // of the rows' dimension, for gathered rows
  bool outside = false;                         // in a dimension that is neither row nor column
  int row_dim = -1, col_dim = 0;
  bool empty() const { return r0 == r1 || c0 == c1; }
  std::int64_t num_rows() const { return r1 - r0; }
  std::int64_t num_cols() const { return c1 - c0; }
};

}  // namespace stretto
