// Elementwise operations against naive double references. What breaks without them: any program
// that is not a bare matrix product.
#include "stretto/executor/kernels/elementwise.h"

#include <algorithm>
#include <limits>
#include <optional>

#include "stretto/base/errors.h"
#include "stretto/executor/kernels/dispatch.h"
#include "stretto/executor/kernels/kernels_test_support.h"

namespace stretto::kernels {
namespace {

using testing::GuardedTile;
using testing::kAllDTypes;
using testing::Layout;
using testing::Random;
using testing::same;

constexpr Layout kLayouts[] = {Layout::kRows, Layout::kColumns, Layout::kStrided};
constexpr double kInf = std::numeric_limits<double>::infinity();

double exact(Unary op, double x) {
  switch (op) {
    case Unary::kNeg:
      return -x;
    case Unary::kAbs:
      return std::fabs(x);
    case Unary::kExp:
      return std::exp(x);
    case Unary::kExp2:
      return std::exp2(x);
    case Unary::kLog:
      return std::log(x);
    case Unary::kSqrt:
      return std::sqrt(x);
    case Unary::kRsqrt:
      return 1 / std::sqrt(x);
    case Unary::kRecip:
      return 1 / x;
    case Unary::kTanh:
      return std::tanh(x);
    case Unary::kSigmoid:
      return 1 / (1 + std::exp(-x));
    case Unary::kSilu:
      return x == -kInf ? -0.0 : x / (1 + std::exp(-x));
    case Unary::kSin:
      return std::sin(x);
    case Unary::kCos:
      return std::cos(x);
    case Unary::kFloor:
      return std::floor(x);
    case Unary::kRound: {
      double below = std::floor(x), rest = x - below;
      bool up = rest > 0.5 || (rest == 0.5 && std::fmod(below, 2) != 0);
      return std::isfinite(x) ? std::copysign(up ? below + 1 : below, x) : x;
    }
    case Unary::kNot:
      return x == 0;
  }
  return NAN;
}

double max_relative_error(Unary op) {
  switch (op) {
    case Unary::kNeg:
    case Unary::kAbs:
    case Unary::kFloor:
    case Unary::kRound:
      return 0;
    case Unary::kSqrt:
    case Unary::kRecip:
      return 0x1p-24;
    case Unary::kRsqrt:
      return 0x1.8p-23;
    default:
      return 4e-7;
  }
}

// Every magnitude, both signs, and the places where formulas change.
std::vector<float> probes(Random& random) {
  std::vector<float> x = {0.0f,       -0.0f,       1.0f,        -1.0f,      0.6f,    -0.6f,
                          88.72f,     88.73f,      88.8f,       -87.3f,     -87.4f,  -103.9f,
                          -104.1f,    127.99f,     128.0f,      -126.f,     -149.0f, -150.1f,
                          1e-45f,     1.2e-38f,    3e38f,       -3e38f,     1e10f,   -1e9f,
                          INFINITY,   -INFINITY,   NAN,         1.0000001f, 0.9999f, 3.1415927f,
                          1.5707964f, 0.70710677f, 0.70710683f, 1.4142135f};
  for (int i = 0; i < 20000; ++i) {
    double magnitude = std::exp2(random.uniform(-140, 127));
    x.push_back(static_cast<float>(random.integer(0, 1) ? magnitude : -magnitude));
    x.push_back(static_cast<float>(random.uniform(-110, 110)));
    x.push_back(static_cast<float>(random.uniform(-2, 2)));
  }
  return x;
}

TEST(Elementwise, UnaryFloatsAreAccurateAndEqualOnEveryInstructionSet) {
  Random random;
  std::vector<float> x = probes(random), y(x.size()), portable(x.size());
  auto n = static_cast<std::int64_t>(x.size());
  ConstTileRef in{DType::kF32, 1, n, x.data(), n};
  for (int i = 0; i <= static_cast<int>(Unary::kRound); ++i) {
    auto op = static_cast<Unary>(i);
    unary(op, {DType::kF32, 1, n, y.data(), n, 1}, in);
    {
      InstructionScope scope(Instructions::kPortable);
      unary(op, {DType::kF32, 1, n, portable.data(), n, 1}, in);
    }
    double worst = 0;
    for (std::size_t j = 0; j < x.size(); ++j) {
      double want = exact(op, x[j]), got = y[j];
      ASSERT_TRUE(same(y[j], portable[j])) << name(op) << "(" << x[j] << ")";
      if (!std::isfinite(want) || std::fabs(want) > std::numeric_limits<float>::max()) {
        ASSERT_TRUE(same(got, static_cast<float>(want))) << name(op) << "(" << x[j] << ") " << got;
        continue;
      }
      double error = std::fabs(got - want);
      // Denormal results count in steps of 2^-149; silu multiplies one by up to 104.
      double step = op == Unary::kSilu ? 0x1p-142 : 0x1.8p-149;
      ASSERT_LE(error, max_relative_error(op) * std::fabs(want) + step)
          << name(op) << "(" << x[j] << ") gives " << got << " instead of " << want;
      if (std::fabs(want) > 1e-36) worst = std::max(worst, error / std::fabs(want));
    }
    RecordProperty(name(op), std::to_string(worst * 1e7) + "e-7");
  }
}

TEST(Elementwise, UnaryDoublesAreExactToTheLastBits) {
  Random random;
  std::vector<double> x = {0, -0.0, 1, -1, 0.6, -745, 709.7, 1e-310, 1e300, kInf, -kInf, NAN};
  for (int i = 0; i < 500; ++i) {
    x.push_back(random.uniform(-750, 750));
    x.push_back(random.uniform(-2, 2));
  }
  auto n = static_cast<std::int64_t>(x.size());
  std::vector<double> y(x.size());
  for (int i = 0; i <= static_cast<int>(Unary::kRound); ++i) {
    auto op = static_cast<Unary>(i);
    unary(op, {DType::kF64, 1, n, y.data(), n, 1}, {DType::kF64, 1, n, x.data(), n});
    for (std::size_t j = 0; j < x.size(); ++j) {
      double want = exact(op, x[j]);
      if (!std::isfinite(want)) {
        ASSERT_TRUE(same(y[j], want)) << name(op) << "(" << x[j] << ") gives " << y[j];
      } else {
        // sigmoid and silu of large negative numbers are written with e^x instead of e^-x.
        ASSERT_NEAR(y[j], want, 1e-15 * std::fabs(want) + 1e-300) << name(op) << "(" << x[j] << ")";
      }
    }
  }
}

TEST(Elementwise, UnaryIntegersAndBool) {
  GuardedTile a(DType::kI32, 1, 3), out(DType::kI32, 1, 3);
  a.set(0, 0, -5), a.set(0, 1, 7), a.set(0, 2, -2147483648.0);
  unary(Unary::kNeg, out.ref(), a.cref());
  EXPECT_EQ(out.get(0, 0), 5);
  EXPECT_EQ(out.get(0, 2), -2147483648.0);
  unary(Unary::kAbs, out.ref(), a.cref());
  EXPECT_EQ(out.get(0, 0), 5);
  EXPECT_EQ(out.get(0, 1), 7);
  EXPECT_THROW(unary(Unary::kExp, out.ref(), a.cref()), InternalError);
  GuardedTile p(DType::kBool, 2, 3);
  p.fill_by([](std::int64_t r, std::int64_t c) { return (r + c) % 2; });
  unary(Unary::kNot, p.ref(), p.cref());
  for (int r = 0; r < 2; ++r)
    for (int c = 0; c < 3; ++c) EXPECT_EQ(p.get(r, c), (r + c + 1) % 2);
  p.expect_guards_intact();
}

double exact(Binary op, double x, double y, bool integer) {
  switch (op) {
    case Binary::kAdd:
      return x + y;
    case Binary::kSub:
      return x - y;
    case Binary::kMul:
      return x * y;
    case Binary::kDiv:
      return integer ? (y == 0 ? 0 : std::trunc(x / y)) : x / y;
    case Binary::kMax:
      return std::fmax(x, y);
    case Binary::kMin:
      return std::fmin(x, y);
    case Binary::kLt:
      return x < y;
    case Binary::kLe:
      return x <= y;
    case Binary::kEq:
      return x == y;
    case Binary::kNe:
      return x != y;
    case Binary::kGt:
      return x > y;
    case Binary::kGe:
      return x >= y;
    case Binary::kAnd:
      return static_cast<double>(static_cast<std::int64_t>(x) & static_cast<std::int64_t>(y));
    case Binary::kOr:
      return static_cast<double>(static_cast<std::int64_t>(x) | static_cast<std::int64_t>(y));
  }
  return NAN;
}

void expect_binary(Binary op, DType dtype, Random& random) {
  std::int64_t rows = random.integer(1, 5), cols = random.integer(1, 600);
  auto operand = [&] {
    return GuardedTile(dtype, random.integer(0, 1) ? rows : 1, random.integer(0, 1) ? cols : 1,
                       kLayouts[random.integer(0, 2)], random.integer(0, 3));
  };
  GuardedTile a = operand(), b = operand();
  bool is_f32 = dtype == DType::kF32;
  double low = dtype == DType::kU8 || dtype == DType::kBool ? 0 : -9;
  double high = dtype == DType::kBool ? 1.99 : 9;
  auto draw = [&](std::int64_t, std::int64_t) {
    double v = random.uniform(low, high);
    if (dtype == DType::kBool) return std::floor(v);
    return is_float(dtype) && random.integer(0, 20) == 0
               ? NAN
               : (random.integer(0, 3) ? v : std::floor(v));
  };
  a.fill_by(draw);
  b.fill_by(draw);
  GuardedTile out(is_comparison(op) ? DType::kBool : dtype, rows, cols,
                  kLayouts[random.integer(0, 2)], random.integer(0, 3));
  binary(op, out.ref(), a.cref(), b.cref());
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t c = 0; c < cols; ++c) {
      double x = a.get(a.rows() == 1 ? 0 : r, a.cols() == 1 ? 0 : c);
      double y = b.get(b.rows() == 1 ? 0 : r, b.cols() == 1 ? 0 : c);
      double want = exact(op, x, y, !is_float(dtype));
      if (is_f32) want = static_cast<float>(want);
      if (dtype == DType::kU8 && !is_comparison(op)) want = std::fmod(want + 256, 256);
      ASSERT_TRUE(same(out.get(r, c), want))
          << x << " " << name(op) << " " << y << " gives " << out.get(r, c);
    }
  }
  out.expect_guards_intact();
}

TEST(Elementwise, BinaryWithEveryBroadcastAndLayout) {
  Random random;
  for (int i = 0; i <= static_cast<int>(Binary::kOr); ++i) {
    auto op = static_cast<Binary>(i);
    for (DType dtype : {DType::kF32, DType::kF64, DType::kI32, DType::kI64, DType::kU8,
                        DType::kBool, DType::kI8}) {
      bool logical = op == Binary::kAnd || op == Binary::kOr;
      if (logical && is_float(dtype)) continue;
      if (dtype == DType::kBool && !logical && !is_comparison(op)) continue;
      SCOPED_TRACE(::testing::Message() << name(op) << " of " << name(dtype));
      for (int repeat = 0; repeat < 8; ++repeat) {
        std::optional<InstructionScope> scope;
        if (repeat % 4 == 3) scope.emplace(Instructions::kPortable);
        expect_binary(op, dtype, random);
      }
    }
  }
}

TEST(Elementwise, TheOutputMayBeAnOperand) {
  GuardedTile a(DType::kF32, 3, 700), b(DType::kF32, 3, 1);
  a.fill_by([](std::int64_t r, std::int64_t c) { return static_cast<double>(r * 1000 + c); });
  b.fill_by([](std::int64_t r, std::int64_t) { return static_cast<double>(r + 1); });
  binary(Binary::kSub, a.ref(), a.cref(), b.cref());
  for (int r = 0; r < 3; ++r)
    for (int c = 0; c < 700; ++c) ASSERT_EQ(a.get(r, c), r * 999 + c - 1);
}

TEST(Elementwise, Where) {
  Random random;
  for (DType dtype : kAllDTypes) {
    for (Layout layout : kLayouts) {
      GuardedTile p(DType::kBool, 5, 301, layout), a(dtype, 5, 1), b(dtype, 1, 301, layout);
      GuardedTile out(dtype, 5, 301, layout);
      p.fill_by([&](std::int64_t, std::int64_t) { return random.integer(0, 1); });
      a.fill_random(random, 0, 9);
      b.fill_random(random, 0, 9);
      where(out.ref(), p.cref(), a.cref(), b.cref());
      for (int r = 0; r < 5; ++r)
        for (int c = 0; c < 301; ++c)
          ASSERT_EQ(out.get(r, c), p.get(r, c) != 0 ? a.get(r, 0) : b.get(0, c)) << name(dtype);
      out.expect_guards_intact();
    }
  }
}

TEST(Elementwise, FillAndIota) {
  for (Layout layout : kLayouts) {
    for (DType dtype : kAllDTypes) {
      GuardedTile t(dtype, 3, 300, layout);
      fill(t.ref(), 1);
      for (int r = 0; r < 3; ++r)
        for (int c = 0; c < 300; ++c) ASSERT_EQ(t.get(r, c), 1) << name(dtype);
      t.expect_guards_intact();
    }
    for (DType dtype : {DType::kI32, DType::kI64}) {
      GuardedTile t(dtype, 3, 300, layout);
      for (int axis : {0, 1}) {
        iota(t.ref(), -4, axis);
        for (int r = 0; r < 3; ++r)
          for (int c = 0; c < 300; ++c) ASSERT_EQ(t.get(r, c), -4 + (axis == 0 ? r : c));
      }
      t.expect_guards_intact();
    }
  }
}

std::vector<double> cast_probes(DType from, Random& random) {
  std::vector<double> values = {0, 1, -1, 2.5, -2.5, 447, 448, 449, 464, 65504, 65519, 65520, 1e6};
  for (double v : {-1e6, 0x1p31, -0x1p31, 0x1p40, 255.5, 256.0, -0.0, 0x1p-9, 0x1p-10, 3e-8, 1e-7})
    values.push_back(v);
  if (is_float(from))
    for (double v : {kInf, -kInf, double{NAN}, 1e20, -1e20, 0x1p-24, 0x1p-133}) values.push_back(v);
  for (int i = 0; i < 2000; ++i) {
    values.push_back(random.uniform(-1, 1) * std::exp2(random.uniform(-20, 40)));
    values.push_back(std::floor(random.uniform(-300, 300)));
  }
  return values;
}

// base/dtype.h converts one element at a time through double and is tested against bit patterns.
TEST(Elementwise, CastBetweenAllDTypesAsTheScalarConversions) {
  Random random;
  for (bool portable : {false, true}) {
    std::optional<InstructionScope> scope;
    if (portable) scope.emplace(Instructions::kPortable);
    for (DType from : kAllDTypes) {
      std::vector<double> values = cast_probes(from, random);
      auto n = static_cast<std::int64_t>(values.size());
      GuardedTile a(from, 1, n);
      a.fill_by([&](std::int64_t, std::int64_t c) { return values[static_cast<std::size_t>(c)]; });
      for (DType to : kAllDTypes) {
        GuardedTile out(to, 2, n), want(to, 1, 1);
        cast(out.ref(), a.cref());
        for (std::int64_t c = 0; c < n; ++c) {
          want.set(0, 0, a.get(0, c));
          ASSERT_TRUE(same(out.get(0, c), want.get(0, 0)) && same(out.get(1, c), out.get(0, c)))
              << name(from) << " " << a.get(0, c) << " -> " << name(to) << " " << out.get(0, c);
        }
        out.expect_guards_intact();
      }
    }
  }
}

TEST(Elementwise, RoundTile) {
  Random random;
  for (DType dtype : {DType::kF16, DType::kBF16, DType::kF8E4M3, DType::kF32}) {
    GuardedTile t(DType::kF32, 7, 33), narrow(dtype, 7, 33);
    t.fill_random(random, -500, 500);
    narrow.fill_by([&](std::int64_t r, std::int64_t c) { return t.get(r, c); });
    round_tile(t.ref(), dtype);
    for (int r = 0; r < 7; ++r)
      for (int c = 0; c < 33; ++c) ASSERT_EQ(t.get(r, c), narrow.get(r, c)) << name(dtype);
    t.expect_guards_intact();
  }
}

TEST(Elementwise, RefusesOtherDTypesAndShapes) {
  GuardedTile a(DType::kF32, 2, 3), b(DType::kBF16, 2, 3), c(DType::kF32, 2, 4);
  EXPECT_THROW(binary(Binary::kAdd, a.ref(), a.cref(), b.cref()), InternalError);
  EXPECT_THROW(binary(Binary::kAdd, a.ref(), a.cref(), c.cref()), InternalError);
  EXPECT_THROW(binary(Binary::kLt, a.ref(), a.cref(), a.cref()), InternalError);
  EXPECT_THROW(binary(Binary::kAnd, a.ref(), a.cref(), a.cref()), InternalError);
  EXPECT_THROW(unary(Unary::kExp, b.ref(), b.cref()), InternalError);
}

}  // namespace
}  // namespace stretto::kernels
