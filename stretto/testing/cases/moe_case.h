// What the cases of a mixture of experts have in common: random inputs, state that is kept, outputs
// of which nothing is expected yet.
#pragma once

#include <optional>
#include <string>

#include "stretto/base/at.h"
#include "stretto/testing/harness/op_case.h"

namespace stretto {

// A case at a launch of m rows: `rows`, or else the bound, of fewer for one seed in three.
struct MoeCase {
  OpCase c;
  std::int64_t m;

  MoeCase(Program program, std::int64_t bound, std::uint64_t seed,
          std::optional<std::int64_t> rows = {})
      : m(rows.value_or(seed % 3 == 2 ? bound / 2 : bound)) {
    c.program = std::move(program);
    c.extents = {m};
    c.inputs = no_values(c.program);
    c.expected = no_values(c.program);
    for (std::size_t r = 0; r < c.inputs.size(); ++r) {
      for (std::size_t t = 0; t < c.program.tensors.size(); ++t) {
        const Tensor& tensor = c.program.tensors[t];
        std::size_t count = at(num_elements(bound_shape(c.program, static_cast<int>(t))));
        if (tensor.kind == TensorKind::kInput) {
          c.inputs[r][t] = random_values(count, tensor.dtype, seed * 131 + 64 * r + t);
        } else if (tensor.kind == TensorKind::kOutput) {
          c.expected[r][t].assign(count, kUnchecked);
        } else if (tensor.kind == TensorKind::kState) {
          c.inputs[r][t] = random_values(count, tensor.dtype, seed * 131 + 64 * r + t);
          c.expected[r][t] = c.inputs[r][t];
        }
      }
    }
  }

  Values& in(std::size_t r, const std::string& name) {
    return c.inputs[r][at(c.program.find_tensor(name))];
  }
  Values& out(std::size_t r, const std::string& name) {
    return c.expected[r][at(c.program.find_tensor(name))];
  }
};

}  // namespace stretto
