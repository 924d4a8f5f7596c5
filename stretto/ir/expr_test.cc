#include "stretto/ir/expr.h"

#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <random>

#include "stretto/base/errors.h"
#include "stretto/ir/sample_programs.h"

namespace stretto::expr_test {
namespace {

using Vars = std::vector<std::int64_t>;
using Plain = std::function<std::int64_t(const Vars&)>;
struct Twin {
  Expr expr;
  Plain plain;
};

// Floored division written without the division under test.
std::int64_t floored(std::int64_t a, std::int64_t b) {
  std::int64_t modulo = ((a % b) + b) % b;
  return (a - modulo) / b;
}

constexpr int kNumVars = 4;

Twin random_twin(std::mt19937_64& rng, int depth) {
  auto number = [&](std::int64_t n) {
    return static_cast<std::int64_t>(rng() % static_cast<std::uint64_t>(n));
  };
  if (depth == 0 || number(6) == 0) {
    if (number(2) == 0) {
      std::int64_t c = number(11) - 5;
      return {c, [c](const Vars&) { return c; }};
    }
    auto v = static_cast<std::size_t>(number(kNumVars));
    return {Expr::var(static_cast<int>(v)), [v](const Vars& vars) { return vars[v]; }};
  }
  Twin a = random_twin(rng, depth - 1), b = random_twin(rng, depth - 1);
  Plain x = a.plain, y = b.plain;
  std::int64_t divisor = number(9) - 4;
  if (divisor == 0) divisor = 7;
  switch (number(15)) {
    case 0:
      return {a.expr + b.expr, [=](const Vars& v) { return x(v) + y(v); }};
    case 1:
      return {a.expr - b.expr, [=](const Vars& v) { return x(v) - y(v); }};
    case 2:
      return {a.expr * b.expr, [=](const Vars& v) { return x(v) * y(v); }};
    case 3:
      return {a.expr / divisor, [=](const Vars& v) { return floored(x(v), divisor); }};
    case 4:
      return {a.expr % divisor,
              [=](const Vars& v) { return x(v) - floored(x(v), divisor) * divisor; }};
    case 5:
      return {min(a.expr, b.expr), [=](const Vars& v) { return x(v) < y(v) ? x(v) : y(v); }};
    case 6:
      return {max(a.expr, b.expr), [=](const Vars& v) { return x(v) < y(v) ? y(v) : x(v); }};
    case 7:
      return {a.expr < b.expr, [=](const Vars& v) { return x(v) < y(v) ? 1 : 0; }};
    case 8:
      return {a.expr >= b.expr, [=](const Vars& v) { return x(v) >= y(v) ? 1 : 0; }};
    case 9:
      return {a.expr == b.expr, [=](const Vars& v) { return x(v) == y(v) ? 1 : 0; }};
    case 10:
      return {a.expr != b.expr, [=](const Vars& v) { return x(v) != y(v) ? 1 : 0; }};
    case 11:
      return {a.expr && b.expr, [=](const Vars& v) { return x(v) != 0 && y(v) != 0 ? 1 : 0; }};
    case 12:
      return {a.expr || b.expr, [=](const Vars& v) { return x(v) != 0 || y(v) != 0 ? 1 : 0; }};
    case 13:
      return {!a.expr, [=](const Vars& v) { return x(v) == 0 ? 1 : 0; }};
    default: {
      Twin c = random_twin(rng, depth - 1);
      Plain z = c.plain;
      return {select(a.expr, b.expr, c.expr),
              [=](const Vars& v) { return x(v) != 0 ? y(v) : z(v); }};
    }
  }
}

// A wrong index expression reads another rank's rows.
TEST(Expr, AgreesWithPlainArithmetic) {
  std::uint64_t seed = sample::test_seed();
  SCOPED_TRACE("STRETTO_TEST_SEED=" + std::to_string(seed));
  std::mt19937_64 rng(seed);
  for (int i = 0; i < 2000; ++i) {
    Twin twin = random_twin(rng, 4);
    Vars vars;
    std::vector<Expr> constants;
    for (int v = 0; v < kNumVars; ++v) {
      vars.push_back(static_cast<std::int64_t>(rng() % 41) - 20);
      constants.emplace_back(vars.back());
    }
    std::int64_t expected = twin.plain(vars);
    ASSERT_EQ(eval(twin.expr, vars), expected);
    // Folding every variable away must give what evaluation gives.
    Expr folded = substitute(twin.expr, constants);
    ASSERT_TRUE(folded.is_const());
    ASSERT_EQ(folded.const_value(), expected);
    // Folding some must not change the value either.
    std::vector<Expr> some = {constants[0], Expr(), constants[2]};
    ASSERT_EQ(eval(substitute(twin.expr, some), vars), expected);
  }
}

TEST(Expr, DivisionIsFloored) {
  for (std::int64_t a : {-7, -6, -1, 0, 1, 6, 7}) {
    for (std::int64_t b : {-3, -1, 1, 3}) {
      std::int64_t q = (Expr(a) / Expr(b)).const_value(), r = (Expr(a) % Expr(b)).const_value();
      EXPECT_EQ(q * b + r, a);
      EXPECT_TRUE(r == 0 || (r < 0) == (b < 0)) << a << " % " << b;
      EXPECT_LT(std::abs(r), std::abs(b));
    }
  }
}

TEST(Expr, ZeroDivisorIsTheUsers) {
  Expr e = Expr(1) / Expr(0);
  EXPECT_FALSE(e.is_const());
  EXPECT_THROW(eval(e, {}), NoValue);
  EXPECT_THROW(eval(Expr::var(0) % Expr::var(1), Vars{3, 0}), NoValue);
}

TEST(Expr, WhatLeaves64BitsIsRefused) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max(), kLeast = -kMost - 1;
  Expr x = Expr::var(0);
  EXPECT_EQ(eval(x + 1, Vars{kMost - 1}), kMost);
  EXPECT_THROW(eval(x + 1, Vars{kMost}), NoValue);
  EXPECT_THROW(eval(x - 1, Vars{kLeast}), NoValue);
  EXPECT_THROW(eval(x * 2, Vars{kMost / 2 + 1}), NoValue);
  EXPECT_THROW(eval(x / Expr::var(1), Vars{kLeast, -1}), NoValue);
  EXPECT_EQ(eval(x % Expr::var(1), Vars{kLeast, -1}), 0);
  EXPECT_EQ(eval(x % Expr::var(1), Vars{kLeast, 3}), 1);
  EXPECT_THROW(Expr(kMost) * Expr(kMost), NoValue);
}

TEST(Expr, SimplifiesIdentities) {
  Expr x = Expr::var(0), y = Expr::var(1);
  EXPECT_TRUE((x + 0).same(x));
  EXPECT_TRUE((0 + x).same(x));
  EXPECT_TRUE((x * 1).same(x));
  EXPECT_TRUE((x * 0).is_const(0));
  EXPECT_TRUE((x / 1).same(x));
  EXPECT_TRUE(min(x, x).same(x));
  EXPECT_TRUE(select(1, x, y).same(x));
  EXPECT_FALSE((x + y).same(y + x));
  EXPECT_FALSE(Expr().same(x));
}

class Squares : public TableReader {
 public:
  std::int64_t read(int tensor_idx, std::span<const std::int64_t> index) override {
    return tensor_idx * 1000 + index[0] * index[0];
  }
};

TEST(Expr, ReadsTables) {
  Squares squares;
  Expr e = Expr::table(3, {Expr::var(0) + 1}) - 1;
  EXPECT_EQ(eval(e, Vars{4}, &squares), 3024);
  EXPECT_THROW(eval(e, Vars{4}), InternalError);
  EXPECT_TRUE(uses_table(e));
  EXPECT_TRUE(uses_var(e, 0));
  EXPECT_FALSE(uses_var(e, 1));
  EXPECT_FALSE(uses_table(Expr::var(0)));
  EXPECT_FALSE(uses_table(Expr()));
}

}  // namespace
}  // namespace stretto::expr_test
