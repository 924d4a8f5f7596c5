// What the loops' references share: random inputs as they are asked for, and outputs that fp64
// arithmetic makes of them.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <utility>

#include "examples/loops/loops.h"

namespace stretto::loops {

inline constexpr double kUnchecked = std::numeric_limits<double>::quiet_NaN();

inline std::size_t at(std::int64_t row, std::int64_t cols, std::int64_t col) {
  return static_cast<std::size_t>(row * cols + col);
}

// A case in the making: its inputs get values as they are asked for.
class CaseMaker {
 public:
  CaseMaker(Program program, std::int64_t rows, std::uint64_t seed) : seed_(seed) {
    case_.config = program.name;
    case_.extents = {rows};
    case_.inputs = case_.expected = no_values(program);
    case_.program = std::move(program);
  }

  Values& input(const char* name) {
    auto t = static_cast<std::size_t>(case_.program.find_tensor(name));
    Values& values = case_.inputs[0][t];
    auto count =
        static_cast<std::size_t>(num_elements(bound_shape(case_.program, static_cast<int>(t))));
    if (values.empty()) values = random_values(count, case_.program.tensors[t].dtype, seed_ + t);
    return values;
  }

  // `element(i, j)` of an output's rows x cols that exist.
  template <typename Element>
  void output(const char* name, std::int64_t rows, std::int64_t cols, const Element& element) {
    auto t = static_cast<std::size_t>(case_.program.find_tensor(name));
    auto count = num_elements(bound_shape(case_.program, static_cast<int>(t)));
    Values out(static_cast<std::size_t>(count), kUnchecked);
    for (std::int64_t i = 0; i < rows; ++i) {
      for (std::int64_t j = 0; j < cols; ++j) out[at(i, cols, j)] = element(i, j);
    }
    case_.expected[0][t] = std::move(out);
  }

  // The last output; `terms` are summed for each element, of about `scale` together.
  template <typename Element>
  OpCase expect(const char* name, std::int64_t rows, std::int64_t cols, std::int64_t terms,
                double scale, const Element& element) {
    output(name, rows, cols, element);
    auto t = static_cast<std::size_t>(case_.program.find_tensor(name));
    case_.tolerance = sum_tolerance(case_.program.tensors[t].dtype, terms);
    case_.scale = scale;
    return std::move(case_);
  }

 private:
  OpCase case_;
  std::uint64_t seed_;
};

// The sum over k of left(l) * right(l).
template <typename Left, typename Right>
double sum_of_products(std::int64_t k, const Left& left, const Right& right) {
  double sum = 0;
  for (std::int64_t l = 0; l < k; ++l) sum += left(l) * right(l);
  return sum;
}

inline double magnitude(std::int64_t terms) { return std::sqrt(static_cast<double>(terms)); }

inline double flops_of(const LoopShape& s, double products = 1) {
  return 2 * products * static_cast<double>(s.m) * static_cast<double>(s.n) *
         static_cast<double>(s.k);
}

}  // namespace stretto::loops
