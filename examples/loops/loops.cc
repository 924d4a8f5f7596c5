#include "examples/loops/loops.h"

#include <algorithm>
#include <cmath>
#include <random>

#include "examples/loops/case_maker.h"

namespace stretto::loops {
namespace {

OpCase chained_case(Program p, const LoopShape& s, std::int64_t rows, std::uint64_t seed) {
  CaseMaker make(std::move(p), rows, seed);
  const Values &a = make.input("a"), &b = make.input("b"), &v = make.input("v");
  Values inner(static_cast<std::size_t>(rows * s.k));  // [rows, k]
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t j = 0; j < s.k; ++j) {
      double sum = sum_of_products(
          s.n, [&](std::int64_t l) { return a[at(i, s.n, l)]; },
          [&](std::int64_t l) { return b[at(j, s.n, l)]; });
      inner[at(i, s.k, j)] = std::max(sum, 0.0);
    }
  }
  inner = round_to(inner, DType::kBF16);
  return make.expect("out", rows, s.n, s.k, 2 * magnitude(s.k),
                     [&](std::int64_t i, std::int64_t j) {
                       return sum_of_products(
                           s.k, [&](std::int64_t l) { return inner[at(i, s.k, l)]; },
                           [&](std::int64_t l) { return v[at(l, s.n, j)]; });
                     });
}

OpCase gathered_case(Program p, const LoopShape& s, std::int64_t rows, std::uint64_t seed) {
  CaseMaker make(std::move(p), rows, seed);
  const Values &a = make.input("a"), &b = make.input("b");
  Values& which = make.input("rows");
  which = random_rows(s.m, s.m, seed);
  return make.expect("c", rows, s.n, s.k, magnitude(s.k), [&](std::int64_t i, std::int64_t j) {
    auto row = static_cast<std::int64_t>(which[static_cast<std::size_t>(i)]);
    if (row < 0) return 0.0;
    return sum_of_products(
        s.k, [&](std::int64_t l) { return a[at(row, s.k, l)]; },
        [&](std::int64_t l) { return b[at(j, s.k, l)]; });
  });
}

OpCase scaled_case(Program p, const LoopShape& s, std::int64_t rows, std::uint64_t seed) {
  constexpr std::int64_t kBlock = 128;
  std::int64_t blocks = ceil_div(s.k, kBlock);
  CaseMaker make(std::move(p), rows, seed);
  const Values &a = make.input("a"), &b = make.input("b");
  const Values &scale_a = make.input("scale_a"), &scale_b = make.input("scale_b");
  return make.expect("c", rows, s.n, s.k, magnitude(s.k), [&](std::int64_t i, std::int64_t j) {
    return sum_of_products(
        s.k, [&](std::int64_t l) { return a[at(i, s.k, l)] * scale_a[at(i, blocks, l / kBlock)]; },
        [&](std::int64_t l) { return b[at(j, s.k, l)] * scale_b[at(l / kBlock, s.n, j)]; });
  });
}

OpCase reduction_case(Program p, const LoopShape& s, std::int64_t rows, std::uint64_t seed) {
  CaseMaker make(std::move(p), rows, seed);
  const Values& x = make.input("x");
  return make.expect("out", rows, 1, s.n, 0, [&](std::int64_t i, std::int64_t) {
    auto row = [&](std::int64_t l) { return x[at(i, s.n, l)]; };
    return sum_of_products(s.n, row, row);
  });
}

OpCase transposed_case(Program p, const LoopShape& s, std::int64_t rows, std::uint64_t seed) {
  CaseMaker make(std::move(p), rows, seed);
  const Values &a = make.input("a"), &b = make.input("b");
  return make.expect("c", rows, s.n, s.k, magnitude(s.k), [&](std::int64_t i, std::int64_t j) {
    return sum_of_products(
        s.k, [&](std::int64_t l) { return a[at(l, s.m, i)]; },
        [&](std::int64_t l) { return b[at(l, s.n, j)]; });
  });
}

OpCase triangular_case(Program p, const LoopShape& s, std::int64_t rows, std::uint64_t seed) {
  CaseMaker make(std::move(p), rows, seed);
  Values& a = make.input("a");
  const Values& b = make.input("b");
  for (std::int64_t i = 0; i < s.m; ++i) {  // what is masked may be anything
    for (std::int64_t l = i + 1; l < s.m; ++l) a[at(i, s.m, l)] = kUnchecked;
  }
  return make.expect("c", rows, s.n, s.m, magnitude(s.m), [&](std::int64_t i, std::int64_t j) {
    return sum_of_products(
        i + 1, [&](std::int64_t l) { return a[at(i, s.m, l)]; },
        [&](std::int64_t l) { return b[at(l, s.n, j)]; });
  });
}

OpCase register_a_case(Program p, const LoopShape& s, std::int64_t rows, std::uint64_t seed) {
  CaseMaker make(std::move(p), rows, seed);
  const Values &w = make.input("w"), &b = make.input("b");
  Values left = make.input("a");
  for (std::size_t i = 0; i < left.size(); ++i) left[i] *= w[i % static_cast<std::size_t>(s.k)];
  left = round_to(left, DType::kBF16);
  return make.expect("c", rows, s.n, s.k, magnitude(s.k), [&](std::int64_t i, std::int64_t j) {
    return sum_of_products(
        s.k, [&](std::int64_t l) { return left[at(i, s.k, l)]; },
        [&](std::int64_t l) { return b[at(j, s.k, l)]; });
  });
}

OpCase elementwise_case(Program p, const LoopShape& s, std::int64_t rows, std::uint64_t seed) {
  CaseMaker make(std::move(p), rows, seed);
  const Values &x = make.input("x"), &g = make.input("g"), &r = make.input("r");
  return make.expect("out", rows, s.n, 1, 1, [&](std::int64_t i, std::int64_t j) {
    double gate = x[at(i, s.n, j)], rest = r[at(i, s.n, j)];
    return gate / (1 + std::exp(-gate)) * g[at(i, s.n, j)] + rest / std::sqrt(rest * rest + 1);
  });
}

}  // namespace

Values random_rows(std::int64_t rows, std::int64_t count, std::uint64_t seed) {
  std::mt19937_64 bits(seed);
  Values out(static_cast<std::size_t>(rows));
  for (double& v : out) {
    v = static_cast<double>(bits() % static_cast<std::uint64_t>(count + count / 16 + 1));
    if (v >= static_cast<double>(count)) v = -1;
  }
  return out;
}

const std::vector<Loop>& all_loops() {
  // Deep: steps of 128 along k, four of which are loaded together.
  constexpr LoopShape kSmall{344, 520, 328}, kSmallDeep{344, 520, 1536}, kCube{8192, 8192, 8192};
  constexpr LoopShape kLong{33792, 128, 16384}, kEdge{8184, 8184, 8184}, kWide{33792, 8192, 1};
  static const std::vector<Loop> loops = {
      {"two chained dots",
       "relu(a [m, n] b' [k, n]) v [k, n], n up to 128",
       {344, 120, 328},
       kLong,
       chained,
       chained_case,
       flops_of(kLong, 2)},
      {"gathered operand", "a [m, k] in rows that an index picks, times b' [n, k]", kSmall, kCube,
       gathered, gathered_case, flops_of(kCube)},
      {"scaled dot", "a [m, k] b' [n, k] with scales per row, column and block of 128 along k",
       kSmallDeep, kCube, scaled, scaled_case, flops_of(kCube)},
      {"reduction",
       "sums of squares of the rows of x [m, n]",
       {344, 520, 1},
       kWide,
       reduction,
       reduction_case,
       0},
      {"transposed operand", "a' [k, m] times b [k, n]", kSmall, kCube, transposed, transposed_case,
       flops_of(kCube)},
      {"masked ragged edge", "lower triangle of a [m, m] times b [m, n]", kSmall, kEdge, triangular,
       triangular_case, flops_of(kEdge) / 2},
      {"register-A dot", "a [m, k] times a weight for each column, times b' [n, k]", kSmall, kCube,
       register_a, register_a_case, flops_of(kCube)},
      {"elementwise chain",
       "silu(x) g + r / sqrt(r^2 + 1) on [m, n]",
       {344, 520, 1},
       kWide,
       elementwise,
       elementwise_case,
       0},
  };
  return loops;
}

}  // namespace stretto::loops
