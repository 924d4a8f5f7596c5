// Tile arithmetic as users write it, against plain loops in double: what attention, routing and
// scaled matrix products need.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "stretto/base/test_seed.h"
#include "stretto/lang/program_builder.h"
#include "stretto/lang/rank_runs.h"

namespace stretto::compute_test {
namespace {

using rank_runs::Doubles, rank_runs::Tensors;

constexpr std::int64_t kRows = 5, kCols = 7;

class Compute : public testing::Test {
 protected:
  Doubles randoms(std::int64_t n, double lo = -2, double hi = 2) {
    Doubles v(static_cast<std::size_t>(n));
    for (double& x : v) {
      x = static_cast<float>(std::uniform_real_distribution<double>(lo, hi)(random_));
    }
    return v;
  }
  Doubles rounded(std::int64_t n, DType dtype) {
    Doubles v = randoms(n);
    for (double& x : v) {
      std::uint64_t bits = 0;
      store_element(dtype, &bits, x);
      x = load_element(dtype, &bits);
    }
    return v;
  }
  std::uint64_t seed_ = test_seed();
  std::mt19937_64 random_{seed_};
  testing::ScopedTrace trace_{__FILE__, __LINE__, "STRETTO_TEST_SEED=" + std::to_string(seed_)};
};

void expect_near(const Doubles& got, const Doubles& want, double tolerance, const char* what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  for (std::size_t i = 0; i < want.size(); ++i) {
    ASSERT_NEAR(got[i], want[i], tolerance * (1 + std::fabs(want[i]))) << what << " [" << i << "]";
  }
}

// One tile y[kRows, kCols] = f(a, b), a and b of the same shape.
using Make = std::function<Value(ProgramBuilder&, const Value& a, const Value& b)>;
Doubles tile_of(const Make& make, const Doubles& a, const Doubles& b) {
  ProgramBuilder p("tile", 1);
  auto x = p.input("x", DType::kF32, {kRows, kCols});
  auto z = p.input("z", DType::kF32, {kRows, kCols});
  auto y = p.output("y", DType::kF32, {kRows, kCols});
  p.role("r", Resource::sms(1), p.range(1), [&](const Tile&) {
    Value v = make(p, p.load(x.tile({0, 0}, kRows, kCols)), p.load(z.tile({0, 0}, kRows, kCols)));
    p.store(y.tile({0, 0}, kRows, kCols), broadcast(cast(v, DType::kF32), kRows, kCols));
  });
  return rank_runs::run(p.finish(), [&](int) { return Tensors{{"x", a}, {"z", b}}; })[0].at("y");
}

TEST_F(Compute, ElementwiseWords) {
  struct Word {
    const char* name;
    Make make;
    double (*plain)(double, double);
  };
  using V = const Value&;
  using P = ProgramBuilder&;
  const Word kWords[] = {
      {"+", [](P, V a, V b) { return a + b; }, [](double a, double b) { return a + b; }},
      {"-", [](P, V a, V b) { return a - b; }, [](double a, double b) { return a - b; }},
      {"*", [](P, V a, V b) { return a * b; }, [](double a, double b) { return a * b; }},
      {"/", [](P, V a, V b) { return a / b; }, [](double a, double b) { return a / b; }},
      {"+ 3", [](P, V a, V) { return a + 3.0; }, [](double a, double) { return a + 3; }},
      {"- 3", [](P, V a, V) { return a - 3.0; }, [](double a, double) { return a - 3; }},
      {"* 3", [](P, V a, V) { return a * 3.0; }, [](double a, double) { return a * 3; }},
      {"/ 4", [](P, V a, V) { return a / 4.0; }, [](double a, double) { return a / 4; }},
      {"1 +", [](P, V a, V) { return 1 + a; }, [](double a, double) { return 1 + a; }},
      {"1 -", [](P, V a, V) { return 1 - a; }, [](double a, double) { return 1 - a; }},
      {"2 *", [](P, V a, V) { return 2 * a; }, [](double a, double) { return 2 * a; }},
      {"2 /", [](P, V a, V) { return 2 / (a + 3); }, [](double a, double) { return 2 / (a + 3); }},
      {"< 0.5", [](P, V a, V) { return a < 0.5; },
       [](double a, double) { return a < 0.5 ? 1. : 0; }},
      {"<= 0.5", [](P, V a, V) { return a <= 0.5; },
       [](double a, double) { return a <= 0.5 ? 1. : 0; }},
      {"> 0.5", [](P, V a, V) { return a > 0.5; },
       [](double a, double) { return a > 0.5 ? 1. : 0; }},
      {">= 0.5", [](P, V a, V) { return a >= 0.5; },
       [](double a, double) { return a >= 0.5 ? 1. : 0; }},
      {"== 0", [](P, V a, V) { return floor(a) == 0; },
       [](double a, double) { return std::floor(a) == 0 ? 1. : 0; }},
      {"!= 0", [](P, V a, V) { return floor(a) != 0; },
       [](double a, double) { return std::floor(a) != 0 ? 1. : 0; }},
      {"maximum 0", [](P, V a, V) { return maximum(a, 0); },
       [](double a, double) { return std::max(a, 0.0); }},
      {"minimum 0", [](P, V a, V) { return minimum(a, 0); },
       [](double a, double) { return std::min(a, 0.0); }},
      {"where 0", [](P, V a, V b) { return where(a > b, a, 0); },
       [](double a, double b) { return a > b ? a : 0; }},
      {"neg", [](P, V a, V) { return -a; }, [](double a, double) { return -a; }},
      {"maximum", [](P, V a, V b) { return maximum(a, b); },
       [](double a, double b) { return std::max(a, b); }},
      {"minimum", [](P, V a, V b) { return minimum(a, b); },
       [](double a, double b) { return std::min(a, b); }},
      {"<", [](P, V a, V b) { return a < b; }, [](double a, double b) { return a < b ? 1. : 0; }},
      {"<=", [](P, V a, V b) { return a <= b; },
       [](double a, double b) { return a <= b ? 1. : 0; }},
      {">", [](P, V a, V b) { return a > b; }, [](double a, double b) { return a > b ? 1. : 0; }},
      {">=", [](P, V a, V b) { return a >= b; },
       [](double a, double b) { return a >= b ? 1. : 0; }},
      {"round", [](P, V a, V) { return round(a); },
       [](double a, double) { return std::nearbyint(a); }},
      {"round ties", [](P, V a, V) { return round(floor(a) + 0.5); },
       [](double a, double) { return 2 * std::round((std::floor(a) + 0.5) / 2); }},
      {"== floors", [](P, V a, V b) { return floor(a) == floor(b); },
       [](double a, double b) { return std::floor(a) == std::floor(b) ? 1. : 0; }},
      {"!= floors", [](P, V a, V b) { return floor(a) != floor(b); },
       [](double a, double b) { return std::floor(a) != std::floor(b) ? 1. : 0; }},
      {"and, or, not", [](P, V a, V b) { return ((a < b) && (b > a)) || !(a > b); },
       [](double a, double b) { return !(a > b) ? 1. : 0; }},
      {"where", [](P p, V a, V b) { return where(a < b, a * 2.0, p.full(DType::kF32, 1, 1, 9)); },
       [](double a, double b) { return a < b ? 2 * a : 9; }},
      {"abs", [](P, V a, V) { return abs(a); }, [](double a, double) { return std::fabs(a); }},
      {"exp", [](P, V a, V) { return exp(a); }, [](double a, double) { return std::exp(a); }},
      {"exp2", [](P, V a, V) { return exp2(a); }, [](double a, double) { return std::exp2(a); }},
      {"log", [](P, V a, V) { return log(abs(a) + 1.0); },
       [](double a, double) { return std::log(std::fabs(a) + 1); }},
      {"sqrt", [](P, V a, V) { return sqrt(abs(a)); },
       [](double a, double) { return std::sqrt(std::fabs(a)); }},
      {"rsqrt", [](P, V a, V) { return rsqrt(abs(a) + 1.0); },
       [](double a, double) { return 1 / std::sqrt(std::fabs(a) + 1); }},
      {"recip", [](P, V a, V) { return recip(abs(a) + 1.0); },
       [](double a, double) { return 1 / (std::fabs(a) + 1); }},
      {"tanh", [](P, V a, V) { return tanh(a); }, [](double a, double) { return std::tanh(a); }},
      {"sigmoid", [](P, V a, V) { return sigmoid(a); },
       [](double a, double) { return 1 / (1 + std::exp(-a)); }},
      {"silu", [](P, V a, V) { return silu(a); },
       [](double a, double) { return a / (1 + std::exp(-a)); }},
      {"sin", [](P, V a, V) { return sin(a); }, [](double a, double) { return std::sin(a); }},
      {"cos", [](P, V a, V) { return cos(a); }, [](double a, double) { return std::cos(a); }},
      {"transposed twice", [](P, V a, V) { return (a.T() * 2.0).T(); },
       [](double a, double) { return 2 * a; }},
  };
  for (const Word& word : kWords) {
    Doubles a = randoms(kRows * kCols), b = randoms(kRows * kCols), want;
    for (std::size_t i = 0; i < a.size(); ++i) want.push_back(word.plain(a[i], b[i]));
    expect_near(tile_of(word.make, a, b), want, 1e-5, word.name);
  }
}

TEST_F(Compute, ReductionsAndTheirBroadcast) {
  struct Word {
    const char* name;
    Make make;
    std::function<double(const Doubles&)> plain;
    bool by_rows;
  };
  using V = const Value&;
  using P = ProgramBuilder&;
  auto sum = [](const Doubles& v) { return std::accumulate(v.begin(), v.end(), 0.0); };
  auto max = [](const Doubles& v) { return *std::max_element(v.begin(), v.end()); };
  auto min = [](const Doubles& v) { return *std::min_element(v.begin(), v.end()); };
  auto argmax = [](const Doubles& v) {
    return static_cast<double>(std::max_element(v.begin(), v.end()) - v.begin());
  };
  const Word kWords[] = {
      {"row_sum", [](P, V a, V) { return row_sum(a); }, sum, true},
      {"row_max", [](P, V a, V) { return row_max(a); }, max, true},
      {"row_min", [](P, V a, V) { return row_min(a); }, min, true},
      {"row_argmax", [](P, V a, V) { return row_argmax(a); }, argmax, true},
      {"col_sum", [](P, V a, V) { return col_sum(a); }, sum, false},
      {"col_max", [](P, V a, V) { return col_max(a); }, max, false},
  };
  for (const Word& word : kWords) {
    Doubles a = randoms(kRows * kCols), want(a.size());
    for (std::int64_t r = 0; r < kRows; ++r) {
      for (std::int64_t c = 0; c < kCols; ++c) {
        Doubles line;
        for (std::int64_t i = 0; i < (word.by_rows ? kCols : kRows); ++i) {
          line.push_back(a[static_cast<std::size_t>(word.by_rows ? r * kCols + i : i * kCols + c)]);
        }
        want[static_cast<std::size_t>(r * kCols + c)] = word.plain(line);
      }
    }
    expect_near(tile_of(word.make, a, a), want, 1e-5, word.name);
  }
  // Ties go to the lowest column.
  Doubles flat(static_cast<std::size_t>(kRows * kCols), 1);
  EXPECT_EQ(tile_of([](P, V a, V) { return row_argmax(a); }, flat, flat)[0], 0);
  Doubles place = tile_of(
      [](P p, V, V) {
        Value row = p.iota_rows(10, kRows), col = p.iota_cols(-3, kCols);
        return row * 100.0 + col + p.splat(DType::kI32, p.rank() + 7);
      },
      flat, flat);
  for (std::int64_t r = 0; r < kRows; ++r) {
    for (std::int64_t c = 0; c < kCols; ++c) {
      EXPECT_EQ(place[static_cast<std::size_t>(r * kCols + c)], (10 + r) * 100 + (c - 3) + 7);
    }
  }
}

TEST_F(Compute, ColumnsOfAValue) {
  static_assert(kCols > 3);
  Doubles a = randoms(kRows * kCols), want;
  for (std::int64_t r = 0; r < kRows; ++r) {
    for (std::int64_t c = 0; c < kCols; ++c) {
      want.push_back(a[static_cast<std::size_t>(r * kCols + 2)] +
                     a[static_cast<std::size_t>(r * kCols + 3)]);
    }
  }
  auto two = [](ProgramBuilder&, const Value& v, const Value&) { return columns(v, 2, 2); };
  Doubles got = tile_of(
      [&](ProgramBuilder& p, const Value& v, const Value& w) { return row_sum(two(p, v, w)); }, a,
      a);
  expect_near(got, want, 1e-5, "columns");
  Doubles narrow =
      tile_of([](ProgramBuilder&, const Value& v,
                 const Value&) { return cast(columns(cast(v, DType::kBF16), 1, 1), DType::kF32); },
              a, a);
  std::uint64_t bits = 0;
  store_element(DType::kBF16, &bits, a[1]);
  EXPECT_EQ(narrow[0], load_element(DType::kBF16, &bits));
}

TEST_F(Compute, CastsRoundOnce) {
  for (DType dtype : {DType::kBF16, DType::kF16, DType::kF8E4M3}) {
    Doubles a = randoms(kRows * kCols), want;
    for (double v : a) {
      std::uint64_t bits = 0;
      store_element(dtype, &bits, v);
      want.push_back(load_element(dtype, &bits));
    }
    Doubles got = tile_of(
        [&](ProgramBuilder&, const Value& v, const Value&) { return cast(v, dtype); }, a, a);
    EXPECT_EQ(got, want) << short_name(dtype);
  }
}

// A dot whose result replaces one of its factors: the factor must be read before it is gone.
TEST_F(Compute, ADotMayReplaceItsFactor) {
  constexpr std::int64_t n = 4;
  ProgramBuilder p("powers", 1);
  auto x = p.input("x", DType::kF32, {n, n});
  auto y = p.output("y", DType::kF32, {n, n});
  p.role("r", Resource::sms(1), p.range(1), [&](const Tile&) {
    Value base = p.load(x.tile({0, 0}, n, n));
    Value power = copy(base);
    p.loop(3, [&](const Index&) { power = dot(p.zeros(DType::kF32, n, n), power, base); });
    p.store(y.tile({0, 0}, n, n), power);
  });
  Doubles a = randoms(n * n, -1, 1), want = a;
  for (int step = 0; step < 3; ++step) {
    Doubles next(16, 0);
    for (std::size_t i = 0; i < 4; ++i) {
      for (std::size_t j = 0; j < 4; ++j) {
        for (std::size_t l = 0; l < 4; ++l) next[i * 4 + j] += want[i * 4 + l] * a[l * 4 + j];
      }
    }
    want = next;
  }
  auto got = rank_runs::run(p.finish(), [&](int) { return Tensors{{"x", a}}; });
  expect_near(got[0].at("y"), want, 1e-5, "power");
}

TEST_F(Compute, ScaledDotOfFp8) {
  constexpr std::int64_t m = 6, n = 5, k = 16;
  ProgramBuilder p("scaled", 1);
  auto a = p.input("a", DType::kF8E4M3, {m, k});
  auto b = p.input("b", DType::kF8E4M3, {n, k});
  auto sa = p.input("sa", DType::kF32, {m, 2});
  auto sb = p.input("sb", DType::kF32, {n, 2});
  auto y = p.output("y", DType::kF32, {m, n});
  p.role("r", Resource::sms(2), p.grid(y, 4, 3), [&](const Tile& t) {
    Value acc = p.zeros(DType::kF32, 4, 3);
    p.loop(2, [&](const Index& i) {  // one scale per row and block of k
      acc = dot_scaled(acc, p.load(a.tile({t.row, i * 8}, 4, 8)),
                       p.load(b.tile({t.col, i * 8}, 3, 8)).T(),
                       {p.load(sa.tile({t.row, i}, 4, 1)), p.load(sb.tile({t.col, i}, 3, 1)).T()});
    });
    p.store(y.tile({t.row, t.col}, 4, 3), acc);
  });
  Doubles av = rounded(m * k, DType::kF8E4M3), bv = rounded(n * k, DType::kF8E4M3);
  Doubles sav = randoms(m * 2, 0.5, 2), sbv = randoms(n * 2, 0.5, 2), want;
  auto at = [](const Doubles& v, std::int64_t i) { return v[static_cast<std::size_t>(i)]; };
  for (std::int64_t i = 0; i < m; ++i) {
    for (std::int64_t j = 0; j < n; ++j) {
      double sum = 0;
      for (std::int64_t l = 0; l < k; ++l) {
        sum +=
            at(av, i * k + l) * at(bv, j * k + l) * at(sav, i * 2 + l / 8) * at(sbv, j * 2 + l / 8);
      }
      want.push_back(sum);
    }
  }
  Program program = p.finish();
  EXPECT_EQ(rank_runs::refusal(program), "");
  auto got = rank_runs::run(program, [&](int) {
    return Tensors{{"a", av}, {"b", bv}, {"sa", sav}, {"sb", sbv}};
  });
  expect_near(got[0].at("y"), want, 1e-4, "dot_scaled");
}

// Softmax over blocks that are seen one after the other.
// Each of eight columns more: the sum of the left factor's row, whatever of the right one lies
// outside of its tensor.
TEST_F(Compute, DotAndRowSums) {
  constexpr std::int64_t rows = 6, inner = 10, cols = 3, wide = cols + 8;
  for (DType dtype : {DType::kF32, DType::kBF16}) {
    ProgramBuilder p("sums", 1);
    auto x = p.input("x", dtype, {rows, inner});
    auto v = p.input("v", dtype, {inner - 2, cols});
    auto y = p.output("y", DType::kF32, {rows, wide});
    p.role("multiply", Resource::sms(2), p.grid(y, 2, wide), [&](const Tile& t) {
      Value acc = p.full(DType::kF32, 2, wide, 0.5);
      p.loop(2, [&](const Index& k) {
        acc = dot_and_row_sums(acc, p.load(x.tile({t.row, k * (inner / 2)}, 2, inner / 2)),
                               p.load(v.tile({k * (inner / 2), 0}, inner / 2, cols)));
      });
      p.store(y.tile({t.row, 0}, 2, wide), acc);
    });
    Program program = p.finish();
    EXPECT_EQ(rank_runs::refusal(program), "");
    Doubles xs, vs, want;
    for (int i = 0; i < rows * inner; ++i) xs.push_back(i % 7 - 3);
    for (int i = 0; i < (inner - 2) * cols; ++i) vs.push_back(i % 5 - 1);
    for (int r = 0; r < rows; ++r) {
      for (int c = 0; c < wide; ++c) {
        double sum = 0.5;
        for (int k = 0; k < inner; ++k) {
          double factor = c >= cols       ? 1
                          : k < inner - 2 ? vs[static_cast<std::size_t>(k * cols + c)]
                                          : 0;
          sum += xs[static_cast<std::size_t>(r * inner + k)] * factor;
        }
        want.push_back(sum);
      }
    }
    auto got = rank_runs::run(program, [&](int) { return Tensors{{"x", xs}, {"v", vs}}; });
    expect_near(got[0].at("y"), want, 1e-6, "sums");
  }
}

TEST_F(Compute, OnlineSoftmax) {
  constexpr std::int64_t rows = 5, cols = 19, block = 4;
  ProgramBuilder p("softmax", 1);
  Index n = p.extent("n", cols);
  auto x = p.input("x", DType::kF32, {rows, n});
  auto v = p.input("v", DType::kF32, {n, 3});
  auto y = p.output("y", DType::kF32, {rows, 3});
  p.role("attend", Resource::sms(2), p.grid(y, 2, 3), [&](const Tile& t) {
    Value peak = p.full(DType::kF32, 2, 1, -1e30), weight = p.zeros(DType::kF32, 2, 1);
    Value acc = p.zeros(DType::kF32, 2, 3);
    p.loop(ceil_div(n, block), [&](const Index& j) {
      Value seen = p.iota_cols(j * block, block) < p.splat(DType::kI32, n);
      Value scores = where(seen, p.load(x.tile({t.row, j * block}, 2, block)),
                           p.full(DType::kF32, 1, 1, -1e30));
      Value new_peak = maximum(peak, row_max(scores));
      Value shrink = exp(peak - new_peak);
      Value chances = where(seen, exp(scores - new_peak), p.zeros(DType::kF32, 1, 1));
      weight = weight * shrink + row_sum(chances);
      acc = dot(acc * shrink, chances, p.load(v.tile({j * block, 0}, block, 3)));
      peak = new_peak;
    });
    p.store(y.tile({t.row, 0}, 2, 3), acc / maximum(weight, p.full(DType::kF32, 1, 1, 1e-30)));
  });
  Program program = p.finish();
  EXPECT_EQ(rank_runs::refusal(program), "");
  for (std::int64_t live : {std::int64_t{0}, std::int64_t{1}, std::int64_t{8}, cols}) {
    Doubles xv = randoms(rows * cols, -5, 5), vv = randoms(cols * 3), want;
    for (std::int64_t r = 0; r < rows; ++r) {
      for (std::int64_t d = 0; d < 3; ++d) {
        double total = 0, sum = 0;
        for (std::int64_t c = 0; c < live; ++c) {
          double e = std::exp(xv[static_cast<std::size_t>(r * cols + c)]);
          total += e;
          sum += e * vv[static_cast<std::size_t>(c * 3 + d)];
        }
        want.push_back(live == 0 ? 0 : sum / total);
      }
    }
    auto got = rank_runs::run(program,
                              [&](int) {
                                return Tensors{{"x", xv}, {"v", vv}};
                              },
                              {.extents = {live}});
    expect_near(got[0].at("y"), want, 1e-5, "softmax");
  }
}

// The k largest of each row by argmax and mask, their softmax weights, and the rows they choose.
TEST_F(Compute, RoutesToTheLargest) {
  constexpr std::int64_t tokens = 6, experts = 5, k = 2, dim = 3;
  ProgramBuilder p("route", 1);
  auto logits = p.input("logits", DType::kF32, {tokens, experts});
  auto table = p.input("table", DType::kF32, {experts, dim});
  auto chosen = p.output("chosen", DType::kI32, {tokens, k});
  auto mixed = p.output("mixed", DType::kF32, {tokens, dim});
  auto spread = p.state("spread", DType::kF32, {tokens + 2, dim});
  p.role("route", Resource::sms(2), p.range(2), [&](const Tile& t) {
    Index row = p.let("row", t.index * 4);
    Value scores = p.load(logits.tile({row, 0}, 4, experts));
    Value best = row_max(scores);
    Value total = p.zeros(DType::kF32, 4, 1), sum = p.zeros(DType::kF32, 4, dim);
    p.loop(k, [&](const Index& i) {
      Value pick = row_argmax(scores);
      p.store(chosen.tile({row, i}, 4, 1), pick);
      Value weight = exp(row_max(scores) - best);
      total = total + weight;
      sum = sum + p.load_rows(table.tile({0, 0}, 4, dim), pick) * weight;
      scores = where(p.iota_cols(0, experts) == pick, p.full(DType::kF32, 1, 1, -1e30), scores);
    });
    Value result = sum / total;
    p.store(mixed.tile({row, 0}, 4, dim), result);
    // Token i goes to row i + 2; what lies past the last token goes nowhere.
    Value to = p.iota_rows(row + 2, 4);
    Value live = p.iota_rows(row, 4) < p.full(DType::kI32, 1, 1, tokens);
    p.store_rows(spread.tile({0, 0}, 4, dim), where(live, to, p.full(DType::kI32, 1, 1, -1)),
                 result);
  });
  Doubles in = randoms(tokens * experts), rows = randoms(experts * dim), picks, want;
  for (std::int64_t t = 0; t < tokens; ++t) {
    std::vector<std::size_t> order(experts);
    std::iota(order.begin(), order.end(), 0);
    auto score = [&](std::size_t e) { return in[static_cast<std::size_t>(t * experts) + e]; };
    std::stable_sort(order.begin(), order.end(),
                     [&](std::size_t a, std::size_t b) { return score(a) > score(b); });
    double total = std::exp(score(order[0])) + std::exp(score(order[1]));
    for (std::size_t i = 0; i < k; ++i) picks.push_back(static_cast<double>(order[i]));
    for (std::size_t d = 0; d < dim; ++d) {
      double sum = 0;
      for (std::size_t i = 0; i < k; ++i) {
        sum += std::exp(score(order[i])) / total * rows[order[i] * dim + d];
      }
      want.push_back(sum);
    }
  }
  auto got = rank_runs::run(p.finish(), [&](int) {
    return Tensors{{"logits", in}, {"table", rows}, {"spread", Doubles((tokens + 2) * dim, 5)}};
  });
  EXPECT_EQ(got[0].at("chosen"), picks);
  expect_near(got[0].at("mixed"), want, 1e-5, "mixed");
  Doubles shifted(2 * dim, 5);
  shifted.insert(shifted.end(), want.begin(), want.end());
  expect_near(got[0].at("spread"), shifted, 1e-5, "spread");
}

}  // namespace
}  // namespace stretto::compute_test
