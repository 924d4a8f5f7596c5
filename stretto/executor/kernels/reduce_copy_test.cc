// Reductions and copies against naive double references: a softmax, a norm or a masked edge that is
// wrong shows here first.
#include <algorithm>
#include <functional>
#include <limits>
#include <optional>

#include "stretto/executor/kernels/copy.h"
#include "stretto/executor/kernels/dispatch.h"
#include "stretto/executor/kernels/elementwise.h"
#include "stretto/executor/kernels/kernels_test_support.h"
#include "stretto/executor/kernels/reduce.h"

namespace stretto::kernels {
namespace {

using testing::GuardedTile;
using testing::kAllDTypes;
using testing::Layout;
using testing::Random;
using testing::same;

constexpr Layout kLayouts[] = {Layout::kRows, Layout::kColumns, Layout::kStrided};
constexpr double kInf = std::numeric_limits<double>::infinity();

using Reduction = void (*)(const TileRef&, const ConstTileRef&);

struct NamedReduction {
  const char* name;
  Reduction rows, columns;
  std::function<double(const std::vector<double>&)> exact;
};

double reduced(const std::vector<double>& v, double start,
               const std::function<double(double, double)>& join) {
  for (double x : v) start = join(start, x);
  return start;
}

std::vector<NamedReduction> reductions() {
  auto sum = [](const std::vector<double>& v) { return reduced(v, 0, std::plus<double>()); };
  auto largest = [](const std::vector<double>& v) {
    return reduced(v, NAN, [](double x, double y) { return std::fmax(x, y); });
  };
  auto smallest = [](const std::vector<double>& v) {
    return reduced(v, NAN, [](double x, double y) { return std::fmin(x, y); });
  };
  auto first_largest = [largest](const std::vector<double>& v) -> double {
    double m = largest(v);
    for (std::size_t i = 0; i < v.size(); ++i)
      if (v[i] == m) return static_cast<double>(i);
    return 0;
  };
  return {{"sum", row_sum, col_sum, sum},
          {"max", row_max, col_max, largest},
          {"min", row_min, col_min, smallest},
          {"argmax", row_argmax, col_argmax, first_largest}};
}

void expect_reduction(const NamedReduction& reduction, DType dtype, bool by_rows, Random& random) {
  std::int64_t rows = random.integer(1, 40), cols = random.integer(1, 300);
  GuardedTile a(dtype, rows, cols, kLayouts[random.integer(0, 2)]);
  bool with_nan = is_float(dtype) && reduction.rows != Reduction{row_sum};
  a.fill_by([&](std::int64_t r, std::int64_t) {
    if (with_nan && (r == 0 || random.integer(0, 9) == 0)) return double{NAN};
    return std::floor(random.uniform(-20, 20)) / (is_float(dtype) ? 3 : 1);
  });
  bool index = reduction.rows == Reduction{row_argmax};
  GuardedTile out(index ? DType::kI32 : dtype, by_rows ? rows : 1, by_rows ? 1 : cols);
  (by_rows ? reduction.rows : reduction.columns)(out.ref(), a.cref());
  for (std::int64_t i = 0; i < (by_rows ? rows : cols); ++i) {
    std::vector<double> line;
    for (std::int64_t j = 0; j < (by_rows ? cols : rows); ++j)
      line.push_back(by_rows ? a.get(i, j) : a.get(j, i));
    double want = reduction.exact(line), got = by_rows ? out.get(i, 0) : out.get(0, i);
    bool rounded = is_float(dtype) && reduction.rows == Reduction{row_sum};
    double step = dtype == DType::kF64 ? 1e-15 : 1e-6;
    if (rounded)
      ASSERT_NEAR(got, want, step * 20 * static_cast<double>(line.size())) << i;
    else
      ASSERT_TRUE(same(got, want)) << i << ": " << got << " instead of " << want;
  }
  out.expect_guards_intact();
}

TEST(Reduce, EveryReductionDTypeAndLayout) {
  Random random;
  for (const NamedReduction& reduction : reductions())
    for (DType dtype : {DType::kF32, DType::kF64, DType::kI32, DType::kI64})
      for (bool by_rows : {true, false})
        for (int repeat = 0; repeat < 6; ++repeat) {
          SCOPED_TRACE(::testing::Message()
                       << (by_rows ? "row " : "col ") << reduction.name << " " << name(dtype));
          std::optional<InstructionScope> scope;
          if (repeat % 3 == 2) scope.emplace(Instructions::kPortable);
          expect_reduction(reduction, dtype, by_rows, random);
        }
}

// The order is part of the definition: other backends and instruction sets must meet it.
TEST(Reduce, RowSumsInTheDocumentedOrder) {
  Random random;
  for (std::int64_t n : {1, 15, 16, 17, 100, 1000}) {
    GuardedTile a(DType::kF32, 1, n), out(DType::kF32, 1, 1);
    a.fill_random(random, -1, 1);
    float lanes[16] = {};
    for (std::int64_t i = 0; i < n; ++i) lanes[i % 16] += static_cast<float>(a.get(0, i));
    for (int half = 8; half > 0; half /= 2)
      for (int j = 0; j < half; ++j) lanes[j] += lanes[j + half];
    for (bool portable : {false, true}) {
      std::optional<InstructionScope> scope;
      if (portable) scope.emplace(Instructions::kPortable);
      row_sum(out.ref(), a.cref());
      EXPECT_EQ(out.get(0, 0), lanes[0]) << n;
    }
  }
}

TEST(Reduce, WithoutElements) {
  GuardedTile a(DType::kF32, 2, 0), out(DType::kF32, 2, 1), index(DType::kI32, 2, 1);
  row_sum(out.ref(), a.cref());
  EXPECT_EQ(out.get(1, 0), 0);
  row_max(out.ref(), a.cref());
  EXPECT_EQ(out.get(1, 0), -kInf);
  row_argmax(index.ref(), a.cref());
  EXPECT_EQ(index.get(1, 0), -1);
}

TEST(Copy, LoadConvertsAndMasks) {
  Random random;
  for (DType from : kAllDTypes) {
    for (Layout source : kLayouts) {
      for (Layout target : kLayouts) {
        std::int64_t rows = random.integer(0, 70), cols = random.integer(0, 40);
        GuardedTile a(from, rows, cols, source);
        a.fill_random(random, 0, 99);
        GuardedTile out(register_dtype(from), rows + random.integer(0, 2),
                        cols + random.integer(0, 2), target);
        load(out.ref(), a.cref(), 1);
        for (std::int64_t r = 0; r < out.rows(); ++r)
          for (std::int64_t c = 0; c < out.cols(); ++c)
            ASSERT_EQ(out.get(r, c), r < rows && c < cols ? a.get(r, c) : 1)
                << name(from) << " " << r << "," << c << " of " << rows << "," << cols;
        out.expect_guards_intact();
      }
    }
  }
}

TEST(Copy, StoreConvertsAndLeavesTheRestAlone) {
  Random random;
  for (DType to : kAllDTypes) {
    for (Layout source : kLayouts) {
      for (Layout target : kLayouts) {
        std::int64_t rows = random.integer(0, 70), cols = random.integer(0, 40);
        GuardedTile out(to, rows, cols, target), want(to, 1, 1);
        GuardedTile a(register_dtype(to), rows + random.integer(0, 2), cols + random.integer(0, 2),
                      source);
        a.fill_random(random, 0, 99);
        store(out.ref(), a.cref());
        for (std::int64_t r = 0; r < rows; ++r)
          for (std::int64_t c = 0; c < cols; ++c) {
            want.set(0, 0, a.get(r, c));
            ASSERT_EQ(out.get(r, c), want.get(0, 0)) << name(to);
          }
        out.expect_guards_intact();
      }
    }
  }
}

TEST(Copy, GatherAndScatterRows) {
  Random random;
  GuardedTile table(DType::kBF16, 6, 11), rows(DType::kI32, 5, 1), picked(DType::kF32, 5, 13);
  table.fill_random(random, -9, 9);
  const double chosen[] = {3, -1, 0, 3, 6};
  rows.fill_by([&](std::int64_t r, std::int64_t) { return chosen[r]; });
  gather_rows(picked.ref(), table.cref(), rows.cref());
  for (int r = 0; r < 5; ++r)
    for (int c = 0; c < 13; ++c) {
      bool inside = chosen[r] >= 0 && chosen[r] < 6 && c < 11;
      ASSERT_EQ(picked.get(r, c), inside ? table.get(static_cast<std::int64_t>(chosen[r]), c) : 0);
    }
  picked.expect_guards_intact();
  GuardedTile back(DType::kBF16, 6, 11);
  fill(back.ref(), -100);
  picked.fill_by([](std::int64_t r, std::int64_t c) { return static_cast<double>(r * 16 + c); });
  scatter_rows(back.ref(), picked.cref(), rows.cref());
  for (int r = 0; r < 6; ++r)
    for (int c = 0; c < 11; ++c)
      ASSERT_EQ(back.get(r, c), r == 3 ? 48 + c : (r == 0 ? 32 + c : -100)) << r << "," << c;
  back.expect_guards_intact();
}

TEST(Copy, TransposeAndCopyKeepEveryBit) {
  Random random;
  for (DType dtype : kAllDTypes) {
    for (Layout source : kLayouts) {
      for (Layout target : kLayouts) {
        std::int64_t rows = random.integer(1, 130), cols = random.integer(1, 50);
        GuardedTile a(dtype, rows, cols, source), out(dtype, rows, cols, target);
        GuardedTile flipped(dtype, cols, rows, target);
        a.fill_random(random, -99, 99);
        copy(out.ref(), a.cref());
        transpose(flipped.ref(), a.cref());
        for (std::int64_t r = 0; r < rows; ++r)
          for (std::int64_t c = 0; c < cols; ++c) {
            ASSERT_EQ(out.get(r, c), a.get(r, c)) << name(dtype);
            ASSERT_EQ(flipped.get(c, r), a.get(r, c)) << name(dtype);
          }
        out.expect_guards_intact();
        flipped.expect_guards_intact();
      }
    }
  }
}

}  // namespace
}  // namespace stretto::kernels
