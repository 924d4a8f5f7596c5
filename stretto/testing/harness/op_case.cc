#include "stretto/testing/harness/op_case.h"

#include <cmath>

namespace stretto {

OpCase random_case(const Program& program, std::uint64_t seed) {
  OpCase c{.program = program, .extents = extent_bounds(program), .config = program.name};
  c.inputs = no_values(program);
  c.expected = no_values(program);
  for (std::size_t r = 0; r < c.inputs.size(); ++r) {
    c.inputs[r] = launch_values(program, static_cast<int>(r), seed);
  }
  return c;
}

double sum_tolerance(DType dtype, std::int64_t terms) {
  double fp32 = 0x1p-23 * std::sqrt(static_cast<double>(terms) + 1) * 4;
  switch (dtype) {
    case DType::kBF16:
      return fp32 + 0x1p-8;
    case DType::kF16:
      return fp32 + 0x1p-11;
    case DType::kF8E4M3:
      return fp32 + 0x1p-4;
    case DType::kF64:
      return fp32 * 0x1p-29;
    default:
      return fp32;
  }
}

std::vector<std::vector<Values>> no_values(const Program& program) {
  return {static_cast<std::size_t>(program.world_size),
          std::vector<Values>(program.tensors.size())};
}

}  // namespace stretto
