// Loads, stores, dots and gathers at ragged edges: an element too many is another tensor's data, an
// element too few is a hole in the result.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "stretto/base/errors.h"
#include "stretto/base/test_seed.h"
#include "stretto/executor/program_runner.h"
#include "stretto/ir/parser.h"
#include "stretto/ir/printer.h"
#include "stretto/lang/column_dot.h"
#include "stretto/lang/program_builder.h"

namespace stretto {
namespace {

class MemoryOps : public testing::Test {
 protected:
  Doubles randoms(std::int64_t n, DType dtype = DType::kF32) {
    Doubles v(static_cast<std::size_t>(n));
    for (double& x : v) {
      std::uint64_t bytes = 0;
      store_element(dtype, &bytes, std::uniform_real_distribution<double>(-1, 1)(random_));
      x = load_element(dtype, &bytes);
    }
    return v;
  }
  std::int64_t below(std::int64_t n) {
    return static_cast<std::int64_t>(random_() % static_cast<std::uint64_t>(n));
  }
  std::uint64_t seed_ = test_seed();
  std::mt19937_64 random_{seed_};
  testing::ScopedTrace trace_{__FILE__, __LINE__, "STRETTO_TEST_SEED=" + std::to_string(seed_)};
};

void expect_near(const Doubles& got, const Doubles& want, double tolerance) {
  ASSERT_EQ(got.size(), want.size());
  for (std::size_t i = 0; i < want.size(); ++i) {
    ASSERT_NEAR(got[i], want[i], tolerance * (1 + std::fabs(want[i]))) << "[" << i << "]";
  }
}

template <typename E = UserError>
std::string error_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const E& e) {
    return e.what();
  }
  return "no error";
}

// out[i, j] = x[i, j] + 1 in tiles that do not divide the tensor, through a transposed view too.
TEST_F(MemoryOps, TilesAtTheEdgeAreMasked) {
  ProgramBuilder p("edges", 1);
  auto x = p.input("x", DType::kF32, {3, 13, 10});
  auto y = p.output("y", DType::kF32, {3, 13, 10});
  auto z = p.output("z", DType::kF32, {3, 13, 10});
  p.role("r", Resource::host(2), p.range(3 * 4 * 3), [&](const Tile& t) {
    Index b = t.index / 12, m = t.index / 3 % 4 * 4, n = t.index % 3 * 4;
    p.store(y.tile({b, m, n}, 4, 4), p.load(x.tile({b, m, n}, 4, 4)) + 1.0);
    auto flipped = [&](const TensorRef& v) {
      return v.tile({b, m, n}, 4, 4).rows_along(2).cols_along(1);
    };
    p.store(flipped(z), p.load(x.tile({b, m, n}, 4, 4)).T());
  });
  Doubles in = randoms(3 * 13 * 10), want = in;
  for (double& v : want) v = static_cast<float>(static_cast<float>(v) + 1.0f);
  auto out = run_once(at_schedule_level(p.finish()), {{"x", in}});
  expect_near(out["y"], want, 0);
  expect_near(out["z"], in, 0);
}

TEST_F(MemoryOps, LimitsAndNegativeOriginsReadZeroAndWriteNothing) {
  ProgramBuilder p("limits", 1);
  auto x = p.input("x", DType::kBF16, {6, 8});
  auto y = p.output("y", DType::kF32, {8, 10});
  auto z = p.state("z", DType::kF32, {6, 8});
  p.role("r", Resource::host(), p.range(1), [&](const Tile&) {
    Value v = p.load(x.tile({-1, -2}, 8, 10).until_row(4).until_col(5));
    p.store(y.tile({0, 0}, 8, 10), cast(v, DType::kF32));
    p.store(z.tile({-1, -2}, 8, 10).until_row(4).until_col(5), p.full(DType::kF32, 8, 10, 9));
  });
  Doubles in = randoms(48, DType::kBF16), want(80), untouched(48, 3);
  for (std::size_t r = 0; r < 4; ++r) {
    for (std::size_t c = 0; c < 5; ++c) {
      want[(r + 1) * 10 + c + 2] = in[r * 8 + c];
      untouched[r * 8 + c] = 9;
    }
  }
  auto out = run_once(at_schedule_level(p.finish()), {{"x", in}, {"z", Doubles(48, 3)}});
  expect_near(out["y"], want, 0);
  expect_near(out["z"], untouched, 0);
}

struct GemmCase {
  std::int64_t m, n, k, bm, bn, bk;
  DType dtype = DType::kF32;
  bool extra_op = false;  // an operation between loads and dot, which keeps the loop unfolded
};

Program gemm(const GemmCase& c) {
  ProgramBuilder p("gemm", 1);
  auto a = p.input("a", c.dtype, {c.m, c.k});
  auto b = p.input("b", c.dtype, {c.n, c.k});
  auto y = p.output("y", DType::kF32, {c.m, c.n});
  p.role("gemm", Resource::sms(3), p.grid(y, c.bm, c.bn), [&](const Tile& t) {
    Value acc = p.zeros(DType::kF32, c.bm, c.bn);
    p.loop(ceil_div(c.k, c.bk), [&](const Index& i) {
      Value left = p.load(a.tile({t.row, i * c.bk}, c.bm, c.bk));
      if (c.extra_op) left = copy(left);
      acc = dot(acc, left, p.load(b.tile({t.col, i * c.bk}, c.bn, c.bk)).T());
    });
    p.store(y.tile({t.row, t.col}, c.bm, c.bn), acc);
  });
  return p.finish();
}

// The rows come from a table; those left out are not zero here, which shows that they are.
TEST_F(MemoryOps, ADotOfTheFirstColumnsLeavesTheOthersOut) {
  constexpr std::int64_t kRows = 5, kCols = 6, kInner = 4;
  ProgramBuilder p("first_columns", 1);
  auto counts = p.table("counts", {4}, {ContractKind::kRange, 0, kCols + 3});
  auto a = p.input("a", DType::kF32, {kRows, kInner});
  auto b = p.input("b", DType::kF32, {kInner, kCols});
  auto y = p.output("y", DType::kF32, {4 * kRows, kCols});
  p.role("r", Resource::sms(2), p.range(4), [&](const Tile& t) {
    Index count = p.read(counts, {t.index});
    Value sum = p.full(DType::kF32, kRows, kCols, 7);
    p.loop(3, [&](const Index&) {
      sum = dot_of_columns(sum, p.load(a.tile({0, 0}, kRows, kInner)),
                           p.load(b.tile({0, 0}, kInner, kCols)), count);
    });
    p.store(y.tile({t.index * kRows, 0}, kRows, kCols), sum);
  });
  Doubles left = randoms(kRows * kInner), right = randoms(kInner * kCols), want;
  const std::vector<std::int64_t> first = {0, 2, kCols, kCols + 2};
  for (std::int64_t count : first) {
    for (std::int64_t r = 0; r < kRows; ++r) {
      for (std::int64_t c = 0; c < kCols; ++c) {
        double sum = 7;
        for (std::int64_t k = 0; k < kInner && c < count; ++k) {
          sum += 3 * left[static_cast<std::size_t>(r * kInner + k)] *
                 right[static_cast<std::size_t>(k * kCols + c)];
        }
        want.push_back(sum);
      }
    }
  }
  Program program = p.finish();
  EXPECT_EQ(print(parse(print(program), "text")), print(program));
  auto out = run_once(at_schedule_level(std::move(program)),
                      {{"counts", Doubles(first.begin(), first.end())}, {"a", left}, {"b", right}});
  expect_near(out["y"], want, 1e-5);
}

TEST_F(MemoryOps, ADotOfTheFirstRowsLeavesTheOthersOut) {
  constexpr std::int64_t kRows = 6, kCols = 5, kInner = 4, kSteps = 3;
  ProgramBuilder p("first_rows", 1);
  auto counts = p.table("counts", {4}, {ContractKind::kRange, 0, kRows + 3});
  auto a = p.input("a", DType::kF32, {kRows, kSteps * kInner});
  auto b = p.input("b", DType::kF32, {kSteps * kInner, kCols});
  auto y = p.output("y", DType::kF32, {4 * kRows, kCols});
  p.role("r", Resource::sms(2), p.range(4), [&](const Tile& t) {
    Index count = p.read(counts, {t.index});
    Value sum = p.full(DType::kF32, kRows, kCols, 7);
    p.loop(kSteps, [&](const Index& i) {
      Value left = p.load(a.tile({0, i * kInner}, kRows, kInner));
      sum = dot(sum, left, p.load(b.tile({i * kInner, 0}, kInner, kCols)), count);
    });
    p.store(y.tile({t.index * kRows, 0}, kRows, kCols), sum);
  });
  Doubles left = randoms(kRows * kSteps * kInner), right = randoms(kSteps * kInner * kCols), want;
  const std::vector<std::int64_t> first = {0, 2, kRows, kRows + 2};
  for (std::int64_t count : first) {
    for (std::int64_t r = 0; r < kRows; ++r) {
      for (std::int64_t c = 0; c < kCols; ++c) {
        double sum = 7;
        for (std::int64_t k = 0; k < kSteps * kInner && r < count; ++k) {
          sum += left[static_cast<std::size_t>(r * kSteps * kInner + k)] *
                 right[static_cast<std::size_t>(k * kCols + c)];
        }
        want.push_back(sum);
      }
    }
  }
  Program program = p.finish();
  EXPECT_EQ(print(parse(print(program), "text")), print(program));
  auto out = run_once(at_schedule_level(std::move(program)),
                      {{"counts", Doubles(first.begin(), first.end())}, {"a", left}, {"b", right}});
  expect_near(out["y"], want, 1e-5);
}

TEST_F(MemoryOps, GemmOfRaggedShapes) {
  for (int round = 0; round < 24; ++round) {
    GemmCase c{.m = 1 + below(40),
               .n = 1 + below(40),
               .k = below(70),
               .bm = 1 + below(20),
               .bn = 1 + below(20),
               .bk = 1 + below(24)};
    c.dtype = std::array{DType::kF32, DType::kBF16, DType::kF16, DType::kF8E4M3}[round % 4];
    c.extra_op = below(2) == 1;
    c.k = std::max<std::int64_t>(c.k, 1);
    Doubles a = randoms(c.m * c.k, c.dtype), b = randoms(c.n * c.k, c.dtype), want;
    for (std::int64_t i = 0; i < c.m; ++i) {
      for (std::int64_t j = 0; j < c.n; ++j) {
        double sum = 0;
        for (std::int64_t l = 0; l < c.k; ++l) {
          sum +=
              a[static_cast<std::size_t>(i * c.k + l)] * b[static_cast<std::size_t>(j * c.k + l)];
        }
        want.push_back(sum);
      }
    }
    SCOPED_TRACE(std::to_string(c.m) + "x" + std::to_string(c.n) + "x" + std::to_string(c.k) + " " +
                 short_name(c.dtype));
    expect_near(run_once(at_schedule_level(gemm(c)), {{"a", a}, {"b", b}})["y"], want, 1e-5);
  }
}

// Factors of either orientation, an accumulator that starts from data, and bounds known only when
// the launch starts, with a loop that may be empty.
TEST_F(MemoryOps, DotAccumulatesOntoDataOverARunTimeRange) {
  ProgramBuilder p("acc", 1);
  Index k_len = p.extent("k_len", 30);
  auto at = p.input("at", DType::kF32, {30, 7});
  auto b = p.input("b", DType::kF32, {30, 9});
  auto c = p.input("c", DType::kF32, {7, 9});
  auto y = p.output("y", DType::kF32, {7, 9});
  p.role("r", Resource::host(), p.range(1), [&](const Tile&) {
    Value acc = p.load(c.tile({0, 0}, 8, 12));
    p.loop(ceil_div(k_len, Index(4)), [&](const Index& i) {
      Value left = p.load(at.tile({i * 4, 0}, 4, 8).until_row(k_len)).T();
      acc = dot(acc, left, p.load(b.tile({i * 4, 0}, 4, 12)));
    });
    p.store(y.tile({0, 0}, 8, 12), acc);
  });
  auto program = at_schedule_level(p.finish());
  Doubles va = randoms(210), vb = randoms(270), vc = randoms(63);
  World world({.size = 1});
  run_program(world, program, [&](Rank&, Instance& instance, RankArguments& arguments) {
    arguments.set("at", va);
    arguments.set("b", vb);
    arguments.set("c", vc);
    for (std::int64_t k : {0, 1, 3, 4, 17, 29, 30}) {
      arguments.extents = {k};
      instance.launch(arguments.args, arguments.extents);
      Doubles want = vc;
      for (std::size_t i = 0; i < 63; ++i) {
        for (std::size_t l = 0; l < static_cast<std::size_t>(k); ++l) {
          want[i] += va[l * 7 + i / 9] * vb[l * 9 + i % 9];
        }
      }
      SCOPED_TRACE(k);
      expect_near(arguments.get("y"), want, 1e-5);
    }
    arguments.extents = {31};
    EXPECT_NE(error_of([&] { instance.launch(arguments.args, arguments.extents); }).find("k_len"),
              std::string::npos);
  });
}

TEST_F(MemoryOps, ScaledDotOfFp8) {
  ProgramBuilder p("scaled", 1);
  auto a = p.input("a", DType::kF8E4M3, {5, 16});
  auto b = p.input("b", DType::kF8E4M3, {6, 16});
  auto sa = p.input("sa", DType::kF32, {5, 1});
  auto sb = p.input("sb", DType::kF32, {1, 6});
  auto y = p.output("y", DType::kF32, {5, 6});
  p.role("r", Resource::host(), p.range(1), [&](const Tile&) {
    Value acc = p.full(DType::kF32, 5, 6, 1.5);
    p.loop(2, [&](const Index& i) {
      acc = dot_scaled(acc, p.load(a.tile({0, i * 8}, 5, 8)), p.load(b.tile({0, i * 8}, 6, 8)).T(),
                       {p.load(sa.tile({0, 0}, 5, 1)), p.load(sb.tile({0, 0}, 1, 6))});
    });
    p.store(y.tile({0, 0}, 5, 6), acc);
  });
  Doubles va = randoms(80, DType::kF8E4M3), vb = randoms(96, DType::kF8E4M3), vsa = randoms(5),
          vsb = randoms(6), want;
  for (std::size_t i = 0; i < 30; ++i) {
    double sum = 0;
    for (std::size_t l = 0; l < 16; ++l) sum += va[i / 6 * 16 + l] * vb[i % 6 * 16 + l];
    want.push_back(1.5 + sum * vsa[i / 6] * vsb[i % 6]);
  }
  auto out =
      run_once(at_schedule_level(p.finish()), {{"a", va}, {"b", vb}, {"sa", vsa}, {"sb", vsb}});
  expect_near(out["y"], want, 1e-5);
}

// A load whose memory changes before the dot must keep the old values.
TEST_F(MemoryOps, ALoadIsNotMovedBehindAStore) {
  ProgramBuilder p("alias", 1);
  auto s = p.state("s", DType::kF32, {4, 4});
  auto y = p.output("y", DType::kF32, {4, 4});
  p.role("r", Resource::host(), p.range(1), [&](const Tile&) {
    Value before = p.load(s.tile({0, 0}, 4, 4));
    p.store(s.tile({0, 0}, 4, 4), p.zeros(DType::kF32, 4, 4));
    p.store(y.tile({0, 0}, 4, 4), dot(p.zeros(DType::kF32, 4, 4), before, before.T()));
  });
  Doubles in = randoms(16), want;
  for (std::size_t i = 0; i < 16; ++i) {
    double sum = 0;
    for (std::size_t l = 0; l < 4; ++l) sum += in[i / 4 * 4 + l] * in[i % 4 * 4 + l];
    want.push_back(sum);
  }
  auto out = run_once(at_schedule_level(p.finish()), {{"s", in}});
  expect_near(out["y"], want, 1e-6);
  expect_near(out["s"], Doubles(16, 0), 0);
}

TEST_F(MemoryOps, GatheredAndScatteredRows) {
  ProgramBuilder p("rows", 1);
  auto table = p.input("table", DType::kI32, {6, 1});
  auto x = p.input("x", DType::kF16, {9, 5});
  auto y = p.output("y", DType::kF32, {6, 8});
  auto z = p.state("z", DType::kF32, {9, 5});
  p.role("r", Resource::host(), p.range(1), [&](const Tile&) {
    Value picked = p.load(table.tile({0, 0}, 6, 1));
    Value rows = p.load_rows(x.tile({0, 0}, 6, 8), picked);
    p.store(y.tile({0, 0}, 6, 8), cast(rows, DType::kF32));
    p.store_rows(z.tile({0, 0}, 6, 8), picked, cast(rows, DType::kF32));
  });
  auto program = at_schedule_level(p.finish());
  Doubles in = randoms(45, DType::kF16), picked = {8, -1, 0, 3, -5, 7}, want(48), scattered(45, 4);
  for (std::size_t i = 0; i < 6; ++i) {
    if (picked[i] < 0) continue;
    auto row = static_cast<std::size_t>(picked[i]);
    for (std::size_t c = 0; c < 5; ++c) {
      want[i * 8 + c] = scattered[row * 5 + c] = in[row * 5 + c];
    }
  }
  auto out = run_once(program, {{"table", picked}, {"x", in}, {"z", Doubles(45, 4)}});
  expect_near(out["y"], want, 0);
  expect_near(out["z"], scattered, 0);
  picked[3] = 9;
  std::string error = error_of([&] { run_once(program, {{"table", picked}, {"x", in}}); });
  EXPECT_NE(error.find("tensor 'x' has 9 rows, entry 3"), std::string::npos) << error;
}

TEST_F(MemoryOps, CopyReduceStoreLoopAndWhen) {
  ProgramBuilder p("effects", 1);
  auto x = p.input("x", DType::kBF16, {7, 9});
  auto y = p.output("y", DType::kBF16, {8, 9});
  auto sum = p.state("sum", DType::kF32, {1, 9});
  p.role("r", Resource::host(), p.range(3), [&](const Tile& t) {
    // The source ends a row before the target does: zeros.
    p.copy(y.tile({t.index * 3, 0}, 3, 9), x.tile({t.index * 3, 0}, 3, 9));
    p.loop(2, 4, [&](const Index& i) {
      p.when(
          i == 2 && t.index < 2,
          [&] {
            p.reduce_store(sum.tile({0, 0}, 1, 9), p.full(DType::kF32, 1, 9, 1));
          },
          [&] {
            p.reduce_store(sum.tile({0, 0}, 1, 9), p.full(DType::kF32, 1, 9, 10));
          });
    });
  });
  Doubles in = randoms(63, DType::kBF16), want = in;
  want.resize(72);
  auto out = run_once(at_schedule_level(p.finish()), {{"x", in}, {"sum", Doubles(9, 0.5)}});
  expect_near(out["y"], want, 0);
  expect_near(out["sum"], Doubles(9, 42.5), 0);
}

TEST_F(MemoryOps, TablesAreCheckedAgainstTheirContract) {
  auto make = [](ContractKind kind) {
    ProgramBuilder p("route", 1);
    auto table = p.table("table", {5}, {kind, 0, 7});
    auto x = p.input("x", DType::kF32, {7, 3});
    auto y = p.output("y", DType::kF32, {5, 3});
    p.role("r", Resource::host(), p.range(5), [&](const Tile& t) {
      Index row = p.read(table, {t.index});
      p.copy(y.tile({t.index, 0}, 1, 3), x.tile({row, 0}, 1, 3));
    });
    return at_schedule_level(p.finish());
  };
  Doubles in = randoms(21), want;
  Doubles table = {1, 3, 4, 5, 6};
  for (double row : table) {
    for (int c = 0; c < 3; ++c) want.push_back(in[static_cast<std::size_t>(row) * 3 + c]);
  }
  for (ContractKind kind :
       {ContractKind::kRange, ContractKind::kPermutation, ContractKind::kAscending}) {
    expect_near(run_once(make(kind), {{"table", table}, {"x", in}})["y"], want, 0);
  }
  auto fails = [&](ContractKind kind, const Doubles& bad, const std::string& entry) {
    std::string error = error_of<Fault>([&] { run_once(make(kind), {{"table", bad}, {"x", in}}); });
    EXPECT_NE(error.find("table 'table'"), std::string::npos) << error;
    EXPECT_NE(error.find(entry), std::string::npos) << error;
  };
  fails(ContractKind::kRange, {1, 3, 7, 5, 6}, "entry 2");
  fails(ContractKind::kRange, {1, -1, 4, 5, 6}, "entry 1");
  fails(ContractKind::kPermutation, {1, 3, 4, 3, 6}, "entry 3");
  fails(ContractKind::kPermutation, {1, 0, 4, 5, 0}, "entry 4");
  fails(ContractKind::kAscending, {1, 3, 4, 2, 6}, "entry 3");
}

// What names nothing may occur again.
TEST_F(MemoryOps, EntriesBelowZeroOfAPermutationNameNothing) {
  ProgramBuilder p("route", 1);
  auto table = p.table("table", {5}, {ContractKind::kPermutation, -2, 7});
  auto x = p.input("x", DType::kF32, {5, 3});
  auto y = p.state("y", DType::kF32, {7, 3});
  p.role("r", Resource::host(), p.range(5), [&](const Tile& t) {
    Index row = p.read(table, {t.index});
    p.copy(y.tile({row, 0}, 1, 3), x.tile({t.index, 0}, 1, 3));
  });
  auto program = at_schedule_level(p.finish());
  Doubles in = randoms(15), before(21, 5.0), want = before, table_in = {-1, 6, -2, 0, -1};
  for (std::size_t i = 0; i < table_in.size(); ++i) {
    if (table_in[i] < 0) continue;
    auto row = static_cast<std::ptrdiff_t>(table_in[i]);
    std::copy_n(in.begin() + static_cast<std::ptrdiff_t>(3 * i), 3, want.begin() + 3 * row);
  }
  auto run = [&] { return run_once(program, {{"table", table_in}, {"x", in}, {"y", before}}); };
  expect_near(run()["y"], want, 0);
  table_in[4] = 6;
  std::string error = error_of<Fault>(run);
  EXPECT_NE(error.find("entry 4 is 6, which occurs before"), std::string::npos) << error;
}

// A table of rows of a table, as experts' sums have: entries come by load_rows alone.
TEST_F(MemoryOps, TablesWhoseRowsArePickedAreChecked) {
  ProgramBuilder p("route", 1);
  auto order = p.input("order", DType::kI32, {5, 1});
  auto table = p.table("table", {6, 1}, {ContractKind::kRange, 0, 7});
  auto x = p.input("x", DType::kF32, {7, 3});
  auto y = p.output("y", DType::kF32, {5, 3});
  p.role("r", Resource::host(), p.range(1), [&](const Tile&) {
    Value rows = p.load_rows(table.tile({0, 0}, 5, 1), p.load(order.tile({0, 0}, 5, 1)));
    p.store(y.tile({0, 0}, 5, 3), p.load_rows(x.tile({0, 0}, 5, 3), rows));
  });
  auto program = at_schedule_level(p.finish());
  Doubles in = randoms(21), order_in = {4, 0, 2, 2, 1}, table_in = {1, 3, 4, 0, 6, 5}, want;
  for (double i : order_in) {
    auto row = static_cast<std::size_t>(table_in[static_cast<std::size_t>(i)]);
    for (std::size_t c = 0; c < 3; ++c) want.push_back(in[row * 3 + c]);
  }
  auto run = [&] {
    return run_once(program, {{"order", order_in}, {"table", table_in}, {"x", in}});
  };
  expect_near(run()["y"], want, 0);
  for (double bad : {7.0, -1.0}) {
    table_in[2] = bad;
    std::string error = error_of<Fault>(run);
    EXPECT_NE(error.find("table 'table' breaks its contract: entry 2 is"), std::string::npos)
        << error;
  }
}

TEST_F(MemoryOps, TablesOfALaunchAreCheckedWhereTheyAreRead) {
  ProgramBuilder p("route", 1);
  auto ids = p.input("ids", DType::kI32, {5});
  auto table = p.made_table("table", {5}, {ContractKind::kRange, 0, 7});
  auto x = p.input("x", DType::kF32, {7, 3});
  auto y = p.output("y", DType::kF32, {5, 3});
  auto made = p.signal("made", 1);
  p.role("make", Resource::host(), p.range(1), [&](const Tile&) {
    p.store(table.tile({0}, 1, 5), p.load(ids.tile({0}, 1, 5)));
    p.notify(made[0], p.rank());
  });
  p.role("pick", Resource::host(), p.range(5), [&](const Tile& t) {
    p.wait(made[0]);
    Index row = p.read(table, {t.index});
    p.copy(y.tile({t.index, 0}, 1, 3), x.tile({row, 0}, 1, 3));
  });
  auto program = at_schedule_level(p.finish());
  Doubles in = randoms(21), ids_in = {1, 3, 4, 0, 6}, want;
  for (double row : ids_in) {
    for (int c = 0; c < 3; ++c) want.push_back(in[static_cast<std::size_t>(row) * 3 + c]);
  }
  expect_near(run_once(program, {{"ids", ids_in}, {"x", in}})["y"], want, 0);
  for (double bad : {7.0, -1.0}) {
    ids_in[2] = bad;
    std::string error = error_of<Fault>([&] { run_once(program, {{"ids", ids_in}, {"x", in}}); });
    EXPECT_NE(error.find("table 'table' breaks its contract: entry 2 is"), std::string::npos)
        << error;
  }
}

TEST_F(MemoryOps, MissingAndMisplacedArgumentsAreNamed) {
  ProgramBuilder p("args", 1);
  auto x = p.input("x", DType::kF32, {4, 4});
  auto y = p.output("y", DType::kF32, {4, 4}, Space::kSymmetric);
  p.role("r", Resource::host(), p.range(1), [&](const Tile&) {
    p.copy(y.tile({0, 0}, 4, 4), x.tile({0, 0}, 4, 4));
  });
  auto program = at_schedule_level(p.finish());
  World world({.size = 1});
  run_program(world, program, [&](Rank&, Instance& instance, RankArguments& arguments) {
    using Extents = std::vector<std::int64_t>;
    auto error_with = [&](const std::function<void(Args&, Extents&)>& spoil) {
      Args args = arguments.args;
      Extents extents = arguments.extents;
      spoil(args, extents);
      return error_of([&] { instance.launch(args, extents); });
    };
    EXPECT_NE(error_with([](Args& a, Extents&) { a.tensors[0].data = nullptr; }).find("'x'"),
              std::string::npos);
    EXPECT_NE(error_with([](Args& a, Extents&) { a.tensors[1].symmetric = nullptr; }).find("'y'"),
              std::string::npos);
    EXPECT_NE(error_with([](Args& a, Extents&) { a.tensors[1].offset_bytes = 128; }).find("'y'"),
              std::string::npos);
    EXPECT_NE(error_with([](Args&, Extents& extents) { extents = {1}; }).find("extents"),
              std::string::npos);
    EXPECT_EQ(error_with([](Args&, Extents&) {}), "no error");
  });
  World two({.size = 2});
  EXPECT_THROW(run_program(two, program, [](Rank&, Instance&, RankArguments&) {}), UserError);
}

// Symmetric memory of the rows that a launch has is enough, whatever the program is bound for.
TEST_F(MemoryOps, SymmetricArgumentsHoldTheRowsOfTheLaunch) {
  ProgramBuilder p("rows", 1);
  Index m = p.extent("m", 64);
  auto x = p.input("x", DType::kF32, {m, 4});
  auto y = p.output("y", DType::kF32, {m, 4}, Space::kSymmetric);
  p.role("r", Resource::host(), p.range(1), [&](const Tile&) {
    p.copy(y.tile({0, 0}, 64, 4).until_row(m), x.tile({0, 0}, 64, 4).until_row(m));
  });
  auto program = at_schedule_level(p.finish());
  World world({.size = 1});
  run_program(world, program, [&](Rank& rank, Instance& instance, RankArguments& arguments) {
    SymmetricBuffer few = rank.allocate("few", DType::kF32, 10 * 4);
    auto error_with = [&](std::int64_t rows, std::size_t offset) {
      Args args = arguments.args;
      args.tensors[1] = {.symmetric = &few, .offset_bytes = offset};
      return error_of([&] { instance.launch(args, std::vector{rows}); });
    };
    EXPECT_EQ(error_with(10, 0), "no error");
    EXPECT_EQ(error_with(0, 160), "no error");
    EXPECT_EQ(error_with(3, 16 * 7), "no error");
    EXPECT_NE(error_with(11, 0).find("'y': needs 176 bytes at offset 0"), std::string::npos);
    EXPECT_NE(error_with(4, 16 * 7).find("needs 64 bytes at offset 112"), std::string::npos);
    rank.release(few);
  });
}

}  // namespace
}  // namespace stretto
