// The held-out loops with their sizes, and what fp64 arithmetic makes of random inputs.
#include <algorithm>
#include <cmath>

#include "examples/loops/case_maker.h"
#include "examples/loops/loops.h"

namespace stretto::loops {
namespace {

constexpr std::int64_t kBlock = 192;  // columns among which `maxima` finds the largest

// The sum over l of left[i, l] * right[j, l]: both lie along k last.
double dot_of(const Values& left, std::int64_t i, const Values& right, std::int64_t j,
              std::int64_t k) {
  return sum_of_products(
      k, [&](std::int64_t l) { return left[at(i, k, l)]; },
      [&](std::int64_t l) { return right[at(j, k, l)]; });
}

OpCase squared_case(Program p, const LoopShape& s, std::int64_t rows, std::uint64_t seed) {
  CaseMaker make(std::move(p), rows, seed);
  const Values &a = make.input("a"), &b = make.input("b"), &v = make.input("v");
  const std::int64_t width = 3 * s.n;
  Values inner(static_cast<std::size_t>(rows * s.k));  // [rows, k]
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t j = 0; j < s.k; ++j) {
      double sum = std::max(dot_of(a, i, b, j, width), 0.0);
      inner[at(i, s.k, j)] = sum * sum;
    }
  }
  inner = round_to(inner, DType::kBF16);
  double scale = static_cast<double>(width) / 9 * magnitude(s.k);  // elements average 1/3 squared
  return make.expect("out", rows, s.n, s.k, scale, [&](std::int64_t i, std::int64_t j) {
    return sum_of_products(
        s.k, [&](std::int64_t l) { return inner[at(i, s.k, l)]; },
        [&](std::int64_t l) { return v[at(l, s.n, j)]; });
  });
}

OpCase right_sum_case(Program p, const LoopShape& s, std::int64_t rows, std::uint64_t seed) {
  CaseMaker make(std::move(p), rows, seed);
  const Values &a = make.input("a"), &d = make.input("d");
  Values right = make.input("b");
  for (std::size_t i = 0; i < right.size(); ++i) right[i] += d[i];
  right = round_to(right, DType::kBF16);
  return make.expect("c", rows, s.n, s.k, magnitude(s.k), [&](std::int64_t i, std::int64_t j) {
    return sum_of_products(
        s.k, [&](std::int64_t l) { return a[at(i, s.k, l)]; },
        [&](std::int64_t l) { return right[at(l, s.n, j)]; });
  });
}

OpCase gathered_right_case(Program p, const LoopShape& s, std::int64_t rows, std::uint64_t seed) {
  CaseMaker make(std::move(p), rows, seed);
  const Values &a = make.input("a"), &b = make.input("b");
  Values& which = make.input("rows");
  which = random_rows(s.n, s.n, seed);
  return make.expect("c", rows, s.n, s.k, magnitude(s.k), [&](std::int64_t i, std::int64_t j) {
    auto row = static_cast<std::int64_t>(which[static_cast<std::size_t>(j)]);
    return row < 0 ? 0.0 : dot_of(a, i, b, row, s.k);
  });
}

OpCase maxima_case(Program p, const LoopShape& s, std::int64_t rows, std::uint64_t seed) {
  CaseMaker make(std::move(p), rows, seed);
  const Values &a = make.input("a"), &b = make.input("b");
  Values sums(static_cast<std::size_t>(rows * s.n));
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t j = 0; j < s.n; ++j) sums[at(i, s.n, j)] = dot_of(a, i, b, j, s.k);
  }
  make.output("most", rows, ceil_div(s.n, kBlock), [&](std::int64_t i, std::int64_t block) {
    double most = 0;
    for (std::int64_t j = block * kBlock; j < std::min((block + 1) * kBlock, s.n); ++j) {
      most = std::max(most, std::abs(sums[at(i, s.n, j)]));
    }
    return most;
  });
  return make.expect("c", rows, s.n, s.k, magnitude(s.k),
                     [&](std::int64_t i, std::int64_t j) { return sums[at(i, s.n, j)]; });
}

OpCase normalised_case(Program p, const LoopShape& s, std::int64_t rows, std::uint64_t seed) {
  CaseMaker make(std::move(p), rows, seed);
  const Values &x = make.input("x"), &y = make.input("y"), &z = make.input("z");
  Values h(static_cast<std::size_t>(rows * s.n));
  for (std::size_t i = 0; i < h.size(); ++i) h[i] = x[i] + y[i] / (1 + std::exp(-y[i])) * z[i];
  return make.expect("out", rows, s.n, s.n, 1, [&](std::int64_t i, std::int64_t j) {
    auto row = [&](std::int64_t l) { return h[at(i, s.n, l)]; };
    double mean = sum_of_products(s.n, row, row) / static_cast<double>(s.n);
    return row(j) / std::sqrt(mean + kNormEps);
  });
}

OpCase banded_case(Program p, const LoopShape& s, std::int64_t rows, std::uint64_t seed) {
  CaseMaker make(std::move(p), rows, seed);
  Values& a = make.input("a");
  const Values& b = make.input("b");
  for (std::int64_t i = 0; i < s.m; ++i) {  // what is masked may be anything
    for (std::int64_t l = 0; l < s.m; ++l) {
      if (std::abs(i - l) > s.k) a[at(i, s.m, l)] = kUnchecked;
    }
  }
  return make.expect("c", rows, s.n, s.k, magnitude(2 * s.k), [&](std::int64_t i, std::int64_t j) {
    double sum = 0;
    for (std::int64_t l = std::max(i - s.k, std::int64_t{0}); l <= std::min(i + s.k, s.m - 1);
         ++l) {
      sum += a[at(i, s.m, l)] * b[at(l, s.n, j)];
    }
    return sum;
  });
}

// Of the elements within the band alone.
double banded_flops(const LoopShape& s) {
  auto m = static_cast<double>(s.m), n = static_cast<double>(s.n), k = static_cast<double>(s.k);
  return 2 * n * (m * (2 * k + 1) - k * (k + 1));
}

}  // namespace

const std::vector<Loop>& held_out_loops() {
  constexpr LoopShape kSmall{344, 520, 328}, kCube{8192, 8192, 8192};
  constexpr LoopShape kLong{33792, 64, 16384}, kRowsOf{67584, 4096, 1}, kBand{8192, 8192, 1024};
  static const std::vector<Loop> loops = {
      {"dots around a square",
       "relu(a [m, 3 n] b' [k, 3 n])^2 v [k, n], n up to 64",
       {344, 56, 328},
       kLong,
       squared,
       squared_case,
       flops_of(kLong, 4)},
      {"sum as right operand", "a [m, k] times b + d, both [k, n]", kSmall, kCube, right_sum,
       right_sum_case, flops_of(kCube)},
      {"gathered right", "a [m, k] times b' [n, k] in rows that an index picks", kSmall, kCube,
       gathered_right, gathered_right_case, flops_of(kCube)},
      {"maxima beside a dot",
       "a [m, k] b' [n, k], and the largest magnitude of every row in blocks of 192 columns",
       kSmall, kCube, maxima, maxima_case, flops_of(kCube)},
      {"normalised rows",
       "h / sqrt(mean of h^2 over its row) of h = x + silu(y) z on [m, n], n up to 4096",
       {344, 520, 1},
       kRowsOf,
       normalised,
       normalised_case,
       0},
      {"banded operand",
       "columns i - k to i + k of the rows i of a [m, m], times b [m, n]",
       {344, 520, 72},
       kBand,
       banded,
       banded_case,
       banded_flops(kBand)},
  };
  return loops;
}

}  // namespace stretto::loops
