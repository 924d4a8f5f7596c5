// A wrong product here is a wrong model everywhere: the CPU executor defines what programs mean.
#include "stretto/executor/kernels/dot.h"

#include <cmath>
#include <limits>
#include <optional>
#include <thread>
#include <utility>

#include "stretto/base/errors.h"
#include "stretto/executor/kernels/dispatch.h"
#include "stretto/executor/kernels/kernels_test_support.h"

namespace stretto::kernels {
namespace {

using testing::GuardedTile;
using testing::Layout;
using testing::Random;

struct Case {
  std::int64_t m, n, k;
  DType a_type = DType::kF32, b_type = DType::kF32;
  Layout a_layout = Layout::kRows, b_layout = Layout::kRows;
  bool accumulate = false;
};

void expect_product(const Case& c, Random& random) {
  SCOPED_TRACE(::testing::Message()
               << "m=" << c.m << " n=" << c.n << " k=" << c.k << " a=" << name(c.a_type)
               << " b=" << name(c.b_type) << " a_layout=" << static_cast<int>(c.a_layout)
               << " b_layout=" << static_cast<int>(c.b_layout) << " accumulate=" << c.accumulate);
  GuardedTile a(c.a_type, c.m, c.k, c.a_layout), b(c.b_type, c.k, c.n, c.b_layout);
  DType wide = sum_dtype(c.a_type);
  GuardedTile acc(wide, c.m, c.n), before(wide, c.m, c.n);
  a.fill_random(random, -1, 1);
  b.fill_random(random, -1, 1);
  before.fill_random(random, -1, 1);
  if (c.accumulate)
    acc.fill_by([&](std::int64_t r, std::int64_t col) { return before.get(r, col); });
  dot({acc.ref(), a.cref(), b.cref(), c.accumulate});
  std::vector<double> left = a.values(), right = b.values();
  for (std::int64_t r = 0; r < c.m; ++r) {
    for (std::int64_t col = 0; col < c.n; ++col) {
      double sum = c.accumulate ? before.get(r, col) : 0, size = std::fabs(sum);
      for (std::int64_t i = 0; i < c.k; ++i) {
        double term = left[static_cast<std::size_t>(r * c.k + i)] *
                      right[static_cast<std::size_t>(i * c.n + col)];
        sum += term;
        size += std::fabs(term);
      }
      // Rounding of k sums of f32, far above what is seen and far below a lost term's mean size.
      double step = wide == DType::kF64 ? 1e-14 : 2e-6;
      ASSERT_NEAR(acc.get(r, col), sum, step * size + 1e-30) << "at " << r << "," << col;
    }
  }
  acc.expect_guards_intact();
}

constexpr Instructions kInstructions[] = {Instructions::kPairs, Instructions::kAvx512,
                                          Instructions::kAvx2, Instructions::kPortable};
constexpr DType kMatrixTypes[] = {DType::kF32, DType::kBF16, DType::kF16};

TEST(Dot, EveryDTypeAndLayout) {
  Random random;
  for (Instructions most : kInstructions) {
    InstructionScope scope(most);
    for (DType a : kMatrixTypes) {
      for (DType b : kMatrixTypes) {
        for (Layout a_layout : {Layout::kRows, Layout::kColumns, Layout::kStrided}) {
          for (Layout b_layout : {Layout::kRows, Layout::kColumns, Layout::kStrided}) {
            bool add = random.integer(0, 1) == 1;
            expect_product({33, 21, 19, a, b, a_layout, b_layout, add}, random);
            expect_product({random.integer(1, 8), 37, 43, a, b, a_layout, b_layout, !add}, random);
            if (a != b) continue;
            DType wide = DType::kF64;
            expect_product({random.integer(0, 33), random.integer(0, 37), random.integer(0, 43),
                            wide, wide, a_layout, b_layout, add},
                           random);
          }
        }
      }
    }
  }
}

TEST(Dot, FewRowsWithEveryRemainder) {
  Random random;
  for (Instructions most : kInstructions) {
    InstructionScope scope(most);
    for (std::int64_t m = 1; m <= 9; ++m) {
      for (Layout layout : {Layout::kRows, Layout::kColumns}) {
        for (DType b : kMatrixTypes) {
          expect_product({m, random.integer(1, 150), random.integer(1, 150), DType::kF32, b,
                          Layout::kRows, layout, m % 2 == 0},
                         random);
        }
      }
    }
  }
}

TEST(Dot, ExtentsOfZeroAndOne) {
  Random random;
  for (std::int64_t m : {0, 1, 2, 17}) {
    for (std::int64_t n : {0, 1, 17}) {
      for (std::int64_t k : {0, 1, 17}) {
        for (bool add : {false, true}) {
          for (Layout layout : {Layout::kRows, Layout::kColumns}) {
            expect_product({m, n, k, DType::kF32, DType::kBF16, layout, layout, add}, random);
            expect_product({m, n, k, DType::kF32, DType::kF32, layout, layout, add}, random);
          }
        }
      }
    }
  }
}

// Panels of 16-bit operands are converted block by block.
TEST(Dot, ManyBlocks) {
  Random random;
  expect_product({9, 2111, 542, DType::kBF16, DType::kBF16, Layout::kRows, Layout::kColumns, true},
                 random);
  expect_product({2100, 9, 530, DType::kF16, DType::kF32, Layout::kRows, Layout::kRows, false},
                 random);
}

TEST(Dot, InfinityAndNanOf16BitWeightsArrive) {
  for (Instructions most : kInstructions) {
    InstructionScope scope(most);
    for (DType type : {DType::kBF16, DType::kF16}) {
      for (std::int64_t m : {1, 16}) {
        GuardedTile x(DType::kF32, m, 9), w(type, 9, 3), acc(DType::kF32, m, 3);
        x.fill_by([](std::int64_t, std::int64_t) { return 1; });
        w.fill_by([](std::int64_t r, std::int64_t c) {
          if (r != 2 || c == 0) return 0x1p-24;  // binary16's smallest denormal
          return c == 1 ? -HUGE_VAL : NAN;
        });
        dot({acc.ref(), x.cref(), w.cref(), false});
        EXPECT_EQ(acc.get(m - 1, 0), 9 * 0x1p-24);
        EXPECT_EQ(acc.get(m - 1, 1), -HUGE_VAL);
        EXPECT_TRUE(std::isnan(acc.get(m - 1, 2)));
      }
    }
  }
}

// Continuous batching would otherwise change a request's tokens with its neighbours.
TEST(Dot, ARowsBitsDoNotDependOnItsNeighbours) {
  Random random;
  constexpr std::int64_t kMost = 3 * kMaxSmallRows + 1;  // few and many have kernels of their own
  for (Layout layout : {Layout::kRows, Layout::kColumns}) {
    GuardedTile x(DType::kF32, kMost, 203), w(DType::kBF16, 203, 101, layout);
    x.fill_random(random, -1, 1);
    w.fill_random(random, -1, 1);
    GuardedTile all(DType::kF32, kMost, 101);
    dot({all.ref(), x.cref(), w.cref(), false});
    for (std::int64_t m = 1; m < kMost; ++m) {
      GuardedTile some(DType::kF32, m, 101);
      ConstTileRef rows = x.cref();
      rows.rows = m;
      dot({some.ref(), rows, w.cref(), false});
      for (std::int64_t r = 0; r < m; ++r)
        for (std::int64_t c = 0; c < 101; ++c) ASSERT_EQ(some.get(r, c), all.get(r, c)) << m;
    }
  }
}

// One algorithm cuts rows into other tiles than another, and both must give the same sums: every
// element is the chain of dot_tiles.h, wherever it lies and whatever the extents.
void expect_chain(std::int64_t m, std::int64_t n, std::int64_t k, DType rows, DType type,
                  Layout layout, bool accumulate, Random& random) {
  SCOPED_TRACE(::testing::Message()
               << "m=" << m << " n=" << n << " k=" << k << " " << name(rows) << " times "
               << name(type) << " layout=" << static_cast<int>(layout));
  GuardedTile a(rows, m, k), b(type, k, n, layout);
  GuardedTile acc(DType::kF32, m, n), before(DType::kF32, m, n);
  a.fill_random(random, -1, 1);
  b.fill_random(random, -1, 1);
  before.fill_random(random, -1, 1);
  acc.fill_by([&](std::int64_t r, std::int64_t c) { return before.get(r, c); });
  dot({acc.ref(), a.cref(), b.cref(), accumulate});
  std::vector<double> left = a.values(), right = b.values();
  for (std::int64_t r = 0; r < m; ++r) {
    for (std::int64_t c = 0; c < n; ++c) {
      float sum = accumulate ? static_cast<float>(before.get(r, c)) : 0.0f;
      for (std::int64_t i = 0; i < k; ++i)
        sum = std::fma(static_cast<float>(left[static_cast<std::size_t>(r * k + i)]),
                       static_cast<float>(right[static_cast<std::size_t>(i * n + c)]), sum);
      ASSERT_EQ(acc.get(r, c), sum) << "at " << r << "," << c;
    }
  }
}

TEST(Dot, AnElementsBitsDependOnNothingButItsRowItsColumnAndWhatWasThere) {
  if (!use_avx2()) GTEST_SKIP() << "no FMA here";
  Random random;
  for (Instructions most : {Instructions::kPairs, Instructions::kAvx512, Instructions::kAvx2}) {
    InstructionScope scope(most);
    for (auto [rows, type] : {std::pair(DType::kF32, DType::kF32),
                              {DType::kF32, DType::kBF16},
                              {DType::kF16, DType::kF16},
                              {DType::kBF16, DType::kBF16}}) {
      for (Layout layout : {Layout::kRows, Layout::kColumns}) {
        for (std::int64_t m : {1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 23, 24, 25, 64, 191, 193})
          expect_chain(m, random.integer(1, 100), random.integer(1, 200), rows, type, layout,
                       m % 2 == 0, random);
        expect_chain(random.integer(9, 30), 520, 33, rows, type, layout, true, random);
        expect_chain(random.integer(9, 30), 37, 401, rows, type, layout, false, random);
        expect_chain(random.integer(9, 30), 35, 1601, rows, type, layout, false, random);
      }
    }
  }
}

// Of two bf16 factors, whether or not the processor multiplies pairs of them: nothing below f32's
// normal numbers is told from zero, in factors, products and sums.
TEST(Dot, SmallNumbersOfTwoBf16FactorsCountAsZero) {
  for (Instructions most : kInstructions) {
    InstructionScope scope(most);
    for (Layout layout : {Layout::kRows, Layout::kColumns}) {
      for (std::int64_t m : {1, 8, 20}) {
        for (std::int64_t k : {1, 2, 33, 64, 70}) {
          SCOPED_TRACE(::testing::Message() << static_cast<int>(most) << " m=" << m << " k=" << k);
          GuardedTile a(DType::kBF16, m, k), b(DType::kBF16, k, 5, layout), acc(DType::kF32, m, 5);
          a.fill_by([](std::int64_t, std::int64_t) { return 0x1p-70; });
          b.fill_by([&](std::int64_t, std::int64_t c) {
            return c == 0 ? 0x1p-60 : c == 1 ? 0x1p-40 : c == 2 ? 0x1p-130 : 0x1p60;
          });
          acc.fill_by([](std::int64_t, std::int64_t c) { return c == 4 ? 0x1p-130 : 0; });
          dot({acc.ref(), a.cref(), b.cref(), true});
          const auto count = static_cast<double>(k);
          for (std::int64_t r = 0; r < m; ++r) {
            EXPECT_EQ(acc.get(r, 0), 0) << "a product of 2^-130";
            EXPECT_EQ(acc.get(r, 1), count * 0x1p-110);
            EXPECT_EQ(acc.get(r, 2), 0) << "a factor of 2^-130";
            EXPECT_EQ(acc.get(r, 3), count * 0x1p-10);
            EXPECT_EQ(acc.get(r, 4), count * 0x1p-10) << "a sum of 2^-130 that was there";
          }
        }
      }
    }
  }
  EXPECT_EQ(std::numeric_limits<float>::min() / 2 + 0.0f, 0x1p-127f) << "this thread flushes on";
}

// Ranks are threads, and their results must be the same bits.
TEST(Dot, ThreadsAtOnceAndShiftedMemoryGiveTheSameBits) {
  Random random;
  constexpr int kThreads = 6;
  for (DType type : {DType::kF32, DType::kBF16}) {
    GuardedTile a(type, 67, 129), b(type, 129, 83, Layout::kColumns);
    a.fill_random(random, -1, 1);
    b.fill_random(random, -1, 1);
    std::vector<std::vector<float>> results(kThreads);
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        std::vector<float>& memory = results[static_cast<std::size_t>(t)];
        for (int repeat = 0; repeat < 20; ++repeat) {
          memory.assign(67 * 83 + static_cast<std::size_t>(t), 0.0f);
          dot({TileRef{DType::kF32, 67, 83, memory.data() + t, 83, 1}, a.cref(), b.cref(), true});
        }
      });
    }
    for (std::thread& t : threads) t.join();
    for (int t = 1; t < kThreads; ++t)
      ASSERT_EQ(0, std::memcmp(results[0].data(), results[static_cast<std::size_t>(t)].data() + t,
                               67 * 83 * sizeof(float)));
  }
}

TEST(Dot, RefusesWhatItCannotMultiply) {
  GuardedTile a(DType::kF32, 4, 5), b(DType::kF32, 5, 6), acc(DType::kF32, 4, 6);
  GuardedTile wrong(DType::kF32, 6, 5), ints(DType::kI32, 4, 5), narrow(DType::kBF16, 4, 6);
  EXPECT_THROW(dot({acc.ref(), wrong.cref(), b.cref(), false}), InternalError);
  EXPECT_THROW(dot({acc.ref(), ints.cref(), b.cref(), false}), InternalError);
  EXPECT_THROW(dot({narrow.ref(), a.cref(), b.cref(), false}), InternalError);
  GuardedTile wide(DType::kF64, 4, 5), wide_b(DType::kF64, 5, 6);
  EXPECT_THROW(dot({acc.ref(), wide.cref(), b.cref(), false}), InternalError);
  EXPECT_THROW(dot({acc.ref(), wide.cref(), wide_b.cref(), false}), InternalError);
}

}  // namespace
}  // namespace stretto::kernels
