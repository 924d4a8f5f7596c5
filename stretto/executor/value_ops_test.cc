// A wrong tile operation is a wrong model output: every operation against plain loops in double.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "stretto/base/errors.h"
#include "stretto/base/test_seed.h"
#include "stretto/executor/program_runner.h"
#include "stretto/lang/program_builder.h"

namespace stretto {
namespace {

using Fn1 = std::function<double(double)>;
using Fn2 = std::function<double(double, double)>;

class ValueOps : public testing::Test {
 protected:
  double uniform(double lo, double hi) {
    return std::uniform_real_distribution<double>(lo, hi)(random_);
  }
  // Values that f32 holds exactly.
  Doubles randoms(std::int64_t n, double lo = -2, double hi = 2) {
    Doubles v(static_cast<std::size_t>(n));
    for (double& x : v) x = static_cast<float>(uniform(lo, hi));
    return v;
  }
  std::string trace() const { return "STRETTO_TEST_SEED=" + std::to_string(seed_); }

  std::uint64_t seed_ = test_seed();
  std::mt19937_64 random_{seed_};
};

void expect_near(const Doubles& got, const Doubles& want, double tolerance, const char* what) {
  ASSERT_GE(got.size(), want.size()) << what;
  for (std::size_t i = 0; i < want.size(); ++i) {
    ASSERT_NEAR(got[i], want[i], tolerance * (1 + std::fabs(want[i]))) << what << " [" << i << "]";
  }
}

constexpr std::int64_t kRows = 5, kCols = 11;

TEST_F(ValueOps, UnaryOperationsMatchTheirDefinition) {
  SCOPED_TRACE(trace());
  struct Row {
    const char* name;
    std::function<Value(const Value&)> op;
    Fn1 reference;
  };
  const std::vector<Row> rows = {
      {"neg", [](const Value& v) { return -v; }, [](double x) { return -x; }},
      {"abs", abs, [](double x) { return std::fabs(x); }},
      {"exp", exp, [](double x) { return std::exp(x); }},
      {"exp2", exp2, [](double x) { return std::exp2(x); }},
      {"log", log, [](double x) { return std::log(x); }},
      {"sqrt", sqrt, [](double x) { return std::sqrt(x); }},
      {"rsqrt", rsqrt, [](double x) { return 1 / std::sqrt(x); }},
      {"recip", recip, [](double x) { return 1 / x; }},
      {"tanh", tanh, [](double x) { return std::tanh(x); }},
      {"sigmoid", sigmoid, [](double x) { return 1 / (1 + std::exp(-x)); }},
      {"silu", silu, [](double x) { return x / (1 + std::exp(-x)); }},
      {"sin", sin, [](double x) { return std::sin(x); }},
      {"cos", cos, [](double x) { return std::cos(x); }},
      {"floor", floor, [](double x) { return std::floor(x); }},
  };
  ProgramBuilder p("unary", 1);
  auto x = p.input("x", DType::kF32, {kRows, kCols});
  std::vector<TensorRef> outs;
  for (const Row& row : rows) outs.push_back(p.output(row.name, DType::kF32, {kRows, kCols}));
  p.role("r", Resource::host(), p.range(1), [&](const Tile&) {
    Value v = p.load(x.tile({0, 0}, kRows, kCols));
    for (std::size_t i = 0; i < rows.size(); ++i) {
      p.store(outs[i].tile({0, 0}, kRows, kCols), rows[i].op(v));
    }
  });
  Doubles input = randoms(kRows * kCols, 0.1, 3);
  auto out = run_once(at_schedule_level(p.finish()), {{"x", input}});
  for (const Row& row : rows) {
    Doubles want;
    for (double v : input) want.push_back(row.reference(v));
    expect_near(out[row.name], want, 2e-6, row.name);
  }
}

TEST_F(ValueOps, BinaryOperationsBroadcastRowsColumnsAndScalars) {
  SCOPED_TRACE(trace());
  struct Row {
    const char* name;
    std::function<Value(const Value&, const Value&)> op;
    Fn2 reference;
  };
  auto flag = [](bool b) { return b ? 1.0 : 0.0; };
  const std::vector<Row> rows = {
      {"add", [](const Value& a, const Value& b) { return a + b; },
       [](double a, double b) { return a + b; }},
      {"sub", [](const Value& a, const Value& b) { return a - b; },
       [](double a, double b) { return a - b; }},
      {"mul", [](const Value& a, const Value& b) { return a * b; },
       [](double a, double b) { return a * b; }},
      {"div", [](const Value& a, const Value& b) { return a / b; },
       [](double a, double b) { return a / b; }},
      {"max", [](const Value& a, const Value& b) { return maximum(a, b); },
       [](double a, double b) { return std::max(a, b); }},
      {"min", [](const Value& a, const Value& b) { return minimum(a, b); },
       [](double a, double b) { return std::min(a, b); }},
      {"lt", [](const Value& a, const Value& b) { return cast(a < b, DType::kF32); },
       [&](double a, double b) { return flag(a < b); }},
      {"le", [](const Value& a, const Value& b) { return cast(a <= b, DType::kF32); },
       [&](double a, double b) { return flag(a <= b); }},
      {"gt", [](const Value& a, const Value& b) { return cast(a > b, DType::kF32); },
       [&](double a, double b) { return flag(a > b); }},
      {"ge", [](const Value& a, const Value& b) { return cast(a >= b, DType::kF32); },
       [&](double a, double b) { return flag(a >= b); }},
      {"eq", [](const Value& a, const Value& b) { return cast(a == b, DType::kF32); },
       [&](double a, double b) { return flag(a == b); }},
      {"ne", [](const Value& a, const Value& b) { return cast(a != b, DType::kF32); },
       [&](double a, double b) { return flag(a != b); }},
      {"logic",
       [](const Value& a, const Value& b) {
         return cast((a < b && a > -b) || !(b < a), DType::kF32);
       },
       [&](double a, double b) { return flag((a < b && a > -b) || !(b < a)); }},
      {"where", [](const Value& a, const Value& b) { return where(a < b, a, b); },
       [](double a, double b) { return a < b ? a : b; }},
  };
  // The second operand as [r, c], [r, 1], [1, c] and [1, 1].
  for (auto [br, bc] : {std::pair{kRows, kCols},
                        {kRows, std::int64_t{1}},
                        {std::int64_t{1}, kCols},
                        {std::int64_t{1}, std::int64_t{1}}}) {
    ProgramBuilder p("binary", 1);
    auto x = p.input("x", DType::kF32, {kRows, kCols});
    auto y = p.input("y", DType::kF32, {br, bc});
    std::vector<TensorRef> outs;
    for (const Row& row : rows) outs.push_back(p.output(row.name, DType::kF32, {kRows, kCols}));
    p.role("r", Resource::host(), p.range(1), [&](const Tile&) {
      Value a = p.load(x.tile({0, 0}, kRows, kCols)), b = p.load(y.tile({0, 0}, br, bc));
      for (std::size_t i = 0; i < rows.size(); ++i) {
        p.store(outs[i].tile({0, 0}, kRows, kCols), rows[i].op(a, b));
      }
    });
    Doubles a = randoms(kRows * kCols), b = randoms(br * bc);
    a[0] = b[0];
    auto out = run_once(at_schedule_level(p.finish()), {{"x", a}, {"y", b}});
    for (const Row& row : rows) {
      Doubles want;
      for (std::int64_t r = 0; r < kRows; ++r) {
        for (std::int64_t c = 0; c < kCols; ++c) {
          auto i = static_cast<std::size_t>((br == 1 ? 0 : r) * bc + (bc == 1 ? 0 : c));
          want.push_back(row.reference(a[static_cast<std::size_t>(r * kCols + c)], b[i]));
        }
      }
      expect_near(out[row.name], want, 1e-6, row.name);
    }
  }
}

TEST_F(ValueOps, ReductionsIotaTransposeBroadcastAndIntegers) {
  SCOPED_TRACE(trace());
  ProgramBuilder p("shapes", 1);
  auto x = p.input("x", DType::kF32, {kRows, kCols});
  auto sum1 = p.output("row_sum", DType::kF32, {kRows, 1});
  auto max1 = p.output("row_max", DType::kF32, {kRows, 1});
  auto min1 = p.output("row_min", DType::kF32, {kRows, 1});
  auto arg1 = p.output("row_argmax", DType::kI32, {kRows, 1});
  auto sum0 = p.output("col_sum", DType::kF32, {1, kCols});
  auto max0 = p.output("col_max", DType::kF32, {1, kCols});
  auto flipped = p.output("flipped", DType::kF32, {kCols, kRows});
  auto index = p.output("index", DType::kI32, {kRows, kCols});
  auto wide = p.output("wide", DType::kF32, {kRows, kCols});
  auto number = p.output("number", DType::kF32, {1, 1});
  p.role("r", Resource::host(), p.range(1), [&](const Tile& t) {
    Value v = p.load(x.tile({0, 0}, kRows, kCols));
    p.store(sum1.tile({0, 0}, kRows, 1), row_sum(v));
    p.store(max1.tile({0, 0}, kRows, 1), row_max(v));
    p.store(min1.tile({0, 0}, kRows, 1), row_min(v));
    p.store(arg1.tile({0, 0}, kRows, 1), row_argmax(v));
    p.store(sum0.tile({0, 0}, 1, kCols), col_sum(v));
    p.store(max0.tile({0, 0}, 1, kCols), col_max(v));
    p.store(flipped.tile({0, 0}, kCols, kRows), v.T());
    Value hundred = p.full(DType::kI32, 1, 1, 100);
    p.store(index.tile({0, 0}, kRows, kCols),
            p.iota_rows(7, kRows) * hundred + p.iota_cols(3, kCols));
    p.store(wide.tile({0, 0}, kRows, kCols), broadcast(row_sum(v), kRows, kCols));
    p.store(number.tile({0, 0}, 1, 1), p.splat(DType::kF32, t.index + 42));
  });
  Doubles in = randoms(kRows * kCols);
  in[kCols + 4] = in[kCols + 9] = 5;  // a tie: the lowest column wins
  auto out = run_once(at_schedule_level(p.finish()), {{"x", in}});
  Doubles sums(kRows), maxs(kRows, -1e30), mins(kRows, 1e30), args(kRows), csums(kCols),
      cmaxs(kCols, -1e30), t(in.size()), idx(in.size()), wides(in.size());
  for (std::size_t r = 0; r < kRows; ++r) {
    for (std::size_t c = 0; c < kCols; ++c) {
      double v = in[r * kCols + c];
      sums[r] += v;
      if (v > maxs[r]) args[r] = static_cast<double>(c);
      maxs[r] = std::max(maxs[r], v);
      mins[r] = std::min(mins[r], v);
      csums[c] += v;
      cmaxs[c] = std::max(cmaxs[c], v);
      t[c * kRows + r] = v;
      idx[r * kCols + c] = static_cast<double>((7 + r) * 100 + 3 + c);
    }
  }
  for (std::size_t i = 0; i < wides.size(); ++i) wides[i] = sums[i / kCols];
  expect_near(out["row_sum"], sums, 1e-5, "row_sum");
  expect_near(out["row_max"], maxs, 0, "row_max");
  expect_near(out["row_min"], mins, 0, "row_min");
  expect_near(out["row_argmax"], args, 0, "row_argmax");
  expect_near(out["col_sum"], csums, 1e-5, "col_sum");
  expect_near(out["col_max"], cmaxs, 0, "col_max");
  expect_near(out["flipped"], t, 0, "transpose");
  expect_near(out["index"], idx, 0, "iota");
  expect_near(out["wide"], wides, 1e-5, "broadcast");
  EXPECT_EQ(out["number"][0], 42);
}

// A transposed tile may replace the one it came from.
TEST_F(ValueOps, TransposeInPlace) {
  SCOPED_TRACE(trace());
  ProgramBuilder p("flip", 1);
  auto x = p.input("x", DType::kF32, {6, 6});
  auto y = p.output("y", DType::kF32, {6, 6});
  p.role("r", Resource::host(), p.range(1), [&](const Tile&) {
    Value v = copy(p.load(x.tile({0, 0}, 6, 6)));
    p.loop(3, [&](const Index&) { v = v.T(); });
    p.store(y.tile({0, 0}, 6, 6), v);
  });
  Doubles in = randoms(36), want(36);
  for (std::size_t i = 0; i < 36; ++i) want[i % 6 * 6 + i / 6] = in[i];
  expect_near(run_once(at_schedule_level(p.finish()), {{"x", in}})["y"], want, 0, "y");
}

// Products, sums and functions of doubles lose nothing to f32 on the way, and what is cast to a
// narrow float is rounded once, whether a register or memory takes it.
TEST_F(ValueOps, DoublesStayDoubles) {
  SCOPED_TRACE(trace());
  ProgramBuilder p("doubles", 1);
  auto x = p.input("x", DType::kF64, {kRows, kCols});
  auto product = p.output("product", DType::kF64, {kRows, kRows});
  auto normed = p.output("normed", DType::kF64, {kRows, kCols});
  auto rounded = p.output("rounded", DType::kF32, {kRows, kCols});
  auto stored = p.output("stored", DType::kBF16, {kRows, kCols});
  p.role("r", Resource::host(), p.range(1), [&](const Tile&) {
    Value v = p.load(x.tile({0, 0}, kRows, kCols));
    Value acc = p.zeros(DType::kF64, kRows, kRows);
    p.loop(2, [&](const Index&) {
      acc =
          dot(acc, p.load(x.tile({0, 0}, kRows, kCols)), p.load(x.tile({0, 0}, kRows, kCols)).T());
    });
    p.store(product.tile({0, 0}, kRows, kRows), acc);
    p.store(normed.tile({0, 0}, kRows, kCols), silu(v) / row_sum(v * v) + 0.1);
    p.store(rounded.tile({0, 0}, kRows, kCols), cast(cast(v, DType::kBF16), DType::kF32));
    p.store(stored.tile({0, 0}, kRows, kCols), cast(v, DType::kBF16));
  });
  Doubles in(kRows * kCols), want_product(kRows * kRows), want_normed(in.size());
  Doubles want_rounded(in.size());
  for (double& v : in) v = uniform(-2, 2);
  in[3] = 1 + 0x1p-8 + 0x1p-40;  // f32 makes it a tie between bf16s, which goes to 1
  for (std::size_t r = 0; r < kRows; ++r) {
    double squares = 0;
    for (std::size_t c = 0; c < kCols; ++c) squares += in[r * kCols + c] * in[r * kCols + c];
    for (std::size_t c = 0; c < kCols; ++c) {
      double v = in[r * kCols + c];
      want_normed[r * kCols + c] = v / (1 + std::exp(-v)) / squares + 0.1;
      std::uint16_t bits = 0;
      store_element(DType::kBF16, &bits, v);
      want_rounded[r * kCols + c] = load_element(DType::kBF16, &bits);
    }
    for (std::size_t other = 0; other < kRows; ++other) {
      for (std::size_t c = 0; c < kCols; ++c) {
        want_product[r * kRows + other] += 2 * in[r * kCols + c] * in[other * kCols + c];
      }
    }
  }
  auto out = run_once(at_schedule_level(p.finish()), {{"x", in}});
  expect_near(out["product"], want_product, 1e-14, "product");
  expect_near(out["normed"], want_normed, 1e-14, "normed");
  expect_near(out["rounded"], want_rounded, 0, "rounded");
  expect_near(out["stored"], want_rounded, 0, "stored");
}

TEST_F(ValueOps, ProductsOfDoublesTakeNothingElse) {
  auto refusal = [](DType acc, DType a, DType b, bool scaled) -> std::string {
    ProgramBuilder p("mixed", 1);
    auto y = p.output("y", acc, {4, 4});
    p.role("r", Resource::host(), p.range(1), [&](const Tile&) {
      Value sum = p.zeros(acc, 4, 4), left = p.zeros(a, 4, 4), right = p.zeros(b, 4, 4);
      DotScales scales{p.zeros(DType::kF32, 4, 1), p.zeros(DType::kF32, 1, 4)};
      sum = scaled ? dot_scaled(sum, left, right, scales) : dot(sum, left, right);
      p.store(y.tile({0, 0}, 4, 4), sum);
    });
    try {
      p.finish();
    } catch (const UserError& e) {
      return e.what();
    }
    return "accepted";
  };
  constexpr DType k32 = DType::kF32, k64 = DType::kF64;
  EXPECT_EQ(refusal(k64, k64, k64, false), "accepted");
  EXPECT_NE(refusal(k64, k64, k32, false).find("need both in f64 or neither"), std::string::npos);
  EXPECT_NE(refusal(k32, k64, k64, false).find("the accumulator is f32[4, 4]"), std::string::npos);
  EXPECT_NE(refusal(k64, k32, k32, false).find("the accumulator is f64[4, 4]"), std::string::npos);
  EXPECT_NE(refusal(k64, k64, k64, true).find("factors with scales are f64"), std::string::npos);
}

TEST_F(ValueOps, RegistersOfSmallFloatsAreRoundedWhenWritten) {
  SCOPED_TRACE(trace());
  for (DType dtype : {DType::kBF16, DType::kF16, DType::kF8E4M3}) {
    ProgramBuilder p("round", 1);
    auto x = p.input("x", DType::kF32, {kRows, kCols});
    auto y = p.output("y", DType::kF32, {kRows, kCols});
    auto z = p.output("z", dtype, {kRows, kCols});
    p.role("r", Resource::host(), p.range(1), [&](const Tile&) {
      Value v = cast(p.load(x.tile({0, 0}, kRows, kCols)), dtype);
      Value square = v * v;
      p.store(y.tile({0, 0}, kRows, kCols), cast(square, DType::kF32));
      p.store(z.tile({0, 0}, kRows, kCols), cast(p.load(x.tile({0, 0}, kRows, kCols)), dtype));
    });
    Doubles in = randoms(kRows * kCols), squares, rounded;
    auto round = [&](double v) {
      std::uint32_t bytes = 0;
      store_element(dtype, &bytes, v);
      return load_element(dtype, &bytes);
    };
    for (double v : in) {
      rounded.push_back(round(v));
      squares.push_back(round(static_cast<float>(round(v) * round(v))));
    }
    auto out = run_once(at_schedule_level(p.finish()), {{"x", in}});
    expect_near(out["y"], squares, 0, short_name(dtype));
    expect_near(out["z"], rounded, 0, short_name(dtype));
  }
}

}  // namespace
}  // namespace stretto
