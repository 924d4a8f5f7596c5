// Which of an operator's shapes is broken as a GPU runs it: mutants of lowered programs.
#pragma once

#include <algorithm>
#include <string_view>
#include <vector>

#include "stretto/ops/operator/operator.h"

namespace stretto {

// A small one, in 16 bits where the operator has such: there tiles travel by TMA. Its products take
// more steps than a pipe has slots: with fewer, what lets go of a slot is never reached.
inline OpShape gpu_shape(const OperatorInfo& op, int world_size) {
  std::vector<OpShape> shapes = op.shapes(world_size);
  auto half = std::find_if(shapes.begin(), shapes.end(),
                           [](const OpShape& s) { return size_bytes(s.dtype) == 2; });
  OpShape shape = half == shapes.end() ? shapes.back() : *half;
  shape.target = Target::kCuda;
  // Steps of bytes are longer, and those of few rows are the longest.
  if (shape.k != 0) shape.k = size_bytes(shape.dtype) == 1 ? 6800 : 2704;
  // The second product of two sums over what the first one's columns are.
  std::string_view name = op.name;
  if (name == "moe_layer" || name == "ep_moe_layer") shape.n = shape.k = 464;
  return shape;
}

}  // namespace stretto
