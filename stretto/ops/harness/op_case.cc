#include "stretto/ops/harness/op_case.h"

#include <algorithm>
#include <cmath>
#include <random>

#include "stretto/base/errors.h"
#include "stretto/ir/printer.h"

namespace stretto {

std::vector<std::vector<OpCase>> cases_of_seeds(const OperatorInfo& op, const OpShape& shape,
                                                std::uint64_t seed, int count) {
  std::vector<std::vector<OpCase>> by_program;
  for (int i = 0; i < count; ++i) {
    OpCase made = op.make_case(shape, seed + static_cast<std::uint64_t>(i));
    auto same = std::ranges::find_if(by_program, [&](const std::vector<OpCase>& cases) {
      return equal(cases.front().program, made.program);
    });
    if (same == by_program.end()) same = by_program.emplace(same);
    same->push_back(std::move(made));
  }
  return by_program;
}

std::vector<OpCase> cases_of_rows(const OperatorInfo& op, const OpShape& shape,
                                  std::uint64_t seed) {
  std::vector<OpCase> cases{op.make_case(shape, seed)};
  const Program& program = cases.front().program;
  auto extent = std::find_if(program.vars.begin(), program.vars.end(),
                             [](const Var& v) { return v.kind == VarKind::kExtent; });
  if (extent == program.vars.end()) return cases;
  const std::int64_t bound = extent->bound;
  for (std::int64_t rows : {bound, bound / 2, std::int64_t{1}, std::int64_t{0}}) {
    bool is_new = std::none_of(cases.begin(), cases.end(),
                               [&](const OpCase& c) { return c.extents.front() == rows; });
    if (!is_new) continue;
    OpShape at_rows = shape;
    at_rows.rows = rows;
    // Even steps, since some configs go by odd and even seeds.
    cases.push_back(op.make_case(at_rows, seed + 2 * cases.size()));
    STRETTO_CHECK(cases.back().extents.front() == rows, "a case with rows of its own");
    STRETTO_CHECK(equal(cases.back().program, cases.front().program),
                  "a program that depends on the rows of a launch");
  }
  return cases;
}

std::vector<OpShape> with_test_configs(std::vector<OpShape> shapes) {
  for (OpShape& s : shapes) s.test_config = true;
  return shapes;
}

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
