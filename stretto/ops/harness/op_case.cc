#include "stretto/ops/harness/op_case.h"

#include <cmath>
#include <random>

namespace stretto {

Values round_to(const Values& values, DType dtype) {
  Values rounded(values.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    std::uint64_t bytes = 0;
    store_element(dtype, &bytes, values[i]);
    rounded[i] = load_element(dtype, &bytes);
  }
  return rounded;
}

Values random_values(std::size_t count, DType dtype, std::uint64_t seed) {
  std::mt19937_64 bits(seed);
  Values values(count);
  // 2^-52 * integer in [0, 2^53): the same on every standard library, unlike
  // uniform_real_distribution.
  for (double& v : values) v = static_cast<double>(bits() >> 11) * 0x1p-52 - 1.0;
  return round_to(values, dtype);
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
