#include "stretto/ops/measure/values.h"

#include <algorithm>
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

Values table_values(const Program& program, std::size_t tensor_idx) {
  const Tensor& t = program.tensors[tensor_idx];
  std::vector<std::int64_t> vars = initial_vars(program, 0, extent_bounds(program));
  auto count =
      static_cast<std::size_t>(num_elements(bound_shape(program, static_cast<int>(tensor_idx))));
  std::int64_t lo = t.contract.lo.has_value() ? eval(t.contract.lo, vars) : 0;
  Values values(count, static_cast<double>(lo));
  if (t.contract.kind == ContractKind::kPermutation) {
    std::int64_t first = std::max<std::int64_t>(lo, 0), end = eval(t.contract.hi, vars);
    for (std::size_t i = 0; i < count; ++i) {
      std::int64_t value = first + static_cast<std::int64_t>(i);
      if (value < end) values[i] = static_cast<double>(value);
    }
  }
  if (t.contract.kind == ContractKind::kPartition) {
    std::int64_t span = eval(t.contract.hi, vars) - 1 - lo;
    auto parts = static_cast<std::int64_t>(count) - 1;
    for (std::int64_t i = 0; i <= parts; ++i) {
      values[static_cast<std::size_t>(i)] = static_cast<double>(lo + span * i / parts);
    }
  }
  return values;
}

std::vector<Values> launch_values(const Program& program, int rank, std::uint64_t seed) {
  std::vector<Values> values(program.tensors.size());
  for (std::size_t t = 0; t < values.size(); ++t) {
    const Tensor& tensor = program.tensors[t];
    if (tensor.kind == TensorKind::kBuffer || tensor.kind == TensorKind::kOutput) continue;
    if (!is_float(tensor.dtype)) {
      values[t] = table_values(program, t);
      continue;
    }
    auto count = static_cast<std::size_t>(num_elements(bound_shape(program, static_cast<int>(t))));
    values[t] =
        random_values(count, tensor.dtype, seed + 64 * t + static_cast<std::uint64_t>(rank));
  }
  return values;
}

}  // namespace stretto
