// What elementwise operations, reductions, stores and copies mean at their edges, on CPU ranks,
// which define it, and on a GPU or a simulated one: a user who loses this has a program that is
// proved, right on CPU ranks and wrong on GPUs.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "stretto/lang/program_builder.h"
#include "stretto/testing/gpu_harness/gpu_case.h"
#include "stretto/testing/harness/run_case.h"

namespace stretto {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

Values made(std::int64_t rows, std::int64_t cols,
            const std::function<double(std::int64_t, std::int64_t)>& at) {
  Values out;
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t c = 0; c < cols; ++c) out.push_back(at(r, c));
  }
  return out;
}

double small(std::int64_t r, std::int64_t c) {
  return static_cast<double>((r * 7 + c * 5 + r * c) % 19 - 9);
}

// Past 2^24 and of both signs.
double large(std::int64_t r, std::int64_t c) {
  auto bits = static_cast<std::uint32_t>(r * 64 + c + 1) * 2654435761U;
  return static_cast<double>(static_cast<std::int32_t>(bits));
}

class Sample {
 public:
  explicit Sample(Program program, std::vector<std::int64_t> extents = {}) {
    case_.config = program.name;
    case_.program = std::move(program);
    case_.extents = std::move(extents);
    case_.inputs = case_.expected = no_values(case_.program);
  }
  void given(const std::string& name, const Values& values) { set(case_.inputs, name, values); }
  void expected(const std::string& name, const Values& values) {
    set(case_.expected, name, values);
  }
  void run() const {
    EXPECT_EQ(run_case(case_, {}), "") << case_.config;
    if (!cuda::has_driver() || cuda::num_devices() < case_.program.world_size) return;
    GpuWorld world({.size = case_.program.world_size});
    EXPECT_EQ(run_gpu_case(world, case_, {.waiver = {}}), "") << case_.config;
  }

 private:
  void set(std::vector<std::vector<Values>>& of, const std::string& name, const Values& values) {
    auto tensor = static_cast<std::size_t>(case_.program.find_tensor(name));
    for (std::vector<Values>& rank : of) rank[tensor] = values;
  }
  OpCase case_;
};

// x's reductions into outputs of their own, beside products that decide the number of threads.
struct Reductions {
  std::int64_t rows, cols;
  TensorRef x, sums, totals, largest, where, all;

  Reductions(ProgramBuilder& p, std::int64_t r, std::int64_t c)
      : rows(r),
        cols(c),
        x(p.input("x", DType::kF32, {r, c})),
        sums(p.output("sums", DType::kF32, {r, 1})),
        totals(p.output("totals", DType::kF32, {1, c})),
        largest(p.output("largest", DType::kF32, {r, 1})),
        where(p.output("where", DType::kI32, {r, 1})),
        all(p.output("all", DType::kF32, {r, c})) {}

  void compute(ProgramBuilder& p) const {
    Value v = p.load(x.tile({0, 0}, rows, cols));
    p.store(sums.tile({0, 0}, rows, 1), row_sum(v));
    p.store(totals.tile({0, 0}, 1, cols), col_sum(v));
    p.store(largest.tile({0, 0}, rows, 1), row_max(v));
    p.store(where.tile({0, 0}, rows, 1), row_argmax(v));
    p.store(all.tile({0, 0}, rows, cols), v * row_max(v) + col_max(v));
  }

  void expect(Sample& s) const {
    auto over = [](std::int64_t n, const std::function<double(std::int64_t)>& of, bool sum) {
      double out = sum ? 0 : -kInf;
      for (std::int64_t i = 0; i < n; ++i) out = sum ? out + of(i) : std::max(out, of(i));
      return out;
    };
    auto of_row = [=, this](std::int64_t r, bool sum) {
      return over(
          cols, [&](std::int64_t c) { return small(r, c); }, sum);
    };
    auto of_col = [=, this](std::int64_t c, bool sum) {
      return over(
          rows, [&](std::int64_t r) { return small(r, c); }, sum);
    };
    s.given("x", made(rows, cols, small));
    s.expected("sums", made(rows, 1, [&](auto r, auto) { return of_row(r, true); }));
    s.expected("totals", made(1, cols, [&](auto, auto c) { return of_col(c, true); }));
    s.expected("largest", made(rows, 1, [&](auto r, auto) { return of_row(r, false); }));
    s.expected("where", made(rows, 1, [&](auto r, auto) {
                 std::int64_t c = 0;
                 while (small(r, c) != of_row(r, false)) ++c;
                 return static_cast<double>(c);
               }));
    s.expected("all", made(rows, cols, [&](auto r, auto c) {
                 return small(r, c) * of_row(r, false) + of_col(c, false);
               }));
  }
};

// Two steps of a product of `rows` by 64.
void multiply(ProgramBuilder& p, const TensorRef& a, const TensorRef& b, const TensorRef& c,
              std::int64_t rows) {
  Value acc = p.zeros(DType::kF32, rows, 64);
  p.loop(2, [&](const Index& i) {
    acc = dot(acc, p.load(a.tile({0, i * 64}, rows, 64)), p.load(b.tile({0, i * 64}, 64, 64)).T());
  });
  p.store(c.tile({0, 0}, rows, 64), acc);
}

void expect_product(Sample& s, std::int64_t rows) {
  s.given("a", made(rows, 128, small));
  s.given("b", made(64, 128, small));
  s.expected("c", made(rows, 64, [](auto r, auto c) {
               double sum = 0;
               for (std::int64_t k = 0; k < 128; ++k) sum += small(r, k) * small(c, k);
               return sum;
             }));
}

TEST(ExactValues, RowsOverThreeWarpgroups) {
  for (std::int64_t rows : {1, 10, 200}) {
    ProgramBuilder p("three_warpgroups", 1);
    auto a = p.input("a", DType::kBF16, {192, 128}), b = p.input("b", DType::kBF16, {64, 128});
    auto c = p.output("c", DType::kF32, {192, 64});
    Reductions wide(p, rows, rows == 200 ? 40 : 640);
    p.role("both", Resource::sms(1).pipelined(2), p.range(1), [&](const Tile&) {
      wide.compute(p);
      multiply(p, a, b, c, 192);
    });
    Sample s(p.finish());
    expect_product(s, 192);
    wide.expect(s);
    s.run();
  }
}

TEST(ExactValues, RowsOverThreeWarpsBesideAnotherRole) {
  ProgramBuilder p("three_warps", 1);
  auto a = p.input("a", DType::kBF16, {128, 128}), b = p.input("b", DType::kBF16, {64, 128});
  auto c = p.output("c", DType::kF32, {128, 64});
  Reductions wide(p, 64, 256);
  int host = p.role("host", Resource::sms(1).pipelined(3), p.range(1),
                    [&](const Tile&) { multiply(p, a, b, c, 128); });
  p.role("guest", Resource::sms(1).beside_role(host), p.range(1),
         [&](const Tile&) { wide.compute(p); });
  Sample s(p.finish());
  expect_product(s, 128);
  wide.expect(s);
  s.run();
}

TEST(ExactValues, OnePickedRowIsEveryThreads) {
  ProgramBuilder p("one_row", 1);
  auto table = p.input("table", DType::kF32, {70, 64}), x = p.input("x", DType::kF32, {32, 64});
  auto picked = p.input("picked", DType::kI32, {1, 1});
  auto out = p.output("out", DType::kF32, {32, 64});
  p.role("add", Resource::sms(1), p.range(1), [&](const Tile&) {
    Value row = p.load_rows(table.tile({0, 0}, 1, 64), p.load(picked.tile({0, 0}, 1, 1)));
    p.store(out.tile({0, 0}, 32, 64), p.load(x.tile({0, 0}, 32, 64)) + row);
  });
  Program program = p.finish();
  for (std::int64_t at : {69, -1}) {
    Sample s(program);
    s.given("table", made(70, 64, small));
    s.given("x", made(32, 64, small));
    s.given("picked", {static_cast<double>(at)});
    s.expected("out", made(32, 64, [&](auto r, auto c) {
                 return small(r, c) + (at < 0 ? 0 : small(at, c));
               }));
    s.run();
  }
}

TEST(ExactValues, RowsAreStoredFromBeforeTheirTensor) {
  ProgramBuilder p("rows_before", 1);
  auto a = p.input("a", DType::kF32, {16, 64});
  auto kept = p.state("kept", DType::kF32, {16, 64});
  p.role("store", Resource::sms(1), p.range(1), [&](const Tile&) {
    p.store_rows(kept.tile({Index(0) - 4, 0}, 16, 64), p.iota_rows(0, 16),
                 p.load(a.tile({0, 0}, 16, 64)));
  });
  Sample s(p.finish());
  s.given("a", made(16, 64, small));
  s.given("kept", made(16, 64, [](auto, auto) { return 77.0; }));
  s.expected("kept", made(16, 64, [](auto r, auto c) { return r < 12 ? small(r + 4, c) : 77.0; }));
  s.run();
}

// TMA views have an element where their tensor has none.
TEST(ExactValues, NothingOfAnExtentIsNeitherReadNorWritten) {
  ProgramBuilder p("nothing", 1);
  Index m = p.extent("m", 64);
  auto a = p.input("a", DType::kBF16, {m, 64}), b = p.input("b", DType::kBF16, {64, 64});
  auto kept = p.state("kept", DType::kBF16, {m, 64});
  auto out = p.output("out", DType::kF32, {64, 64});
  p.role("multiply", Resource::sms(1).pipelined(2), p.range(1), [&](const Tile&) {
    Value acc = p.zeros(DType::kF32, 64, 64);
    p.loop(1, [&](const Index& i) {
      acc = dot(acc, p.load(a.tile({0, i * 64}, 64, 64)), p.load(b.tile({0, i * 64}, 64, 64)).T());
    });
    p.store(out.tile({0, 0}, 64, 64), acc);
    p.store(kept.tile({0, 0}, 64, 64), cast(minimum(acc, 100.0), DType::kBF16));
  });
  Program program = p.finish();
  for (std::int64_t rows : {0, 3}) {
    Sample s(program, {rows});
    s.given("a", made(64, 64, small));
    s.given("b", made(64, 64, small));
    s.given("kept", made(64, 64, [](auto, auto) { return 7.0; }));
    auto product = [&](std::int64_t r, std::int64_t c) {
      double sum = 0;
      for (std::int64_t k = 0; k < 64 && r < rows; ++k) sum += small(r, k) * small(c, k);
      return sum;
    };
    s.expected("out", made(64, 64, product));
    s.expected("kept", round_to(made(64, 64,
                                     [&](auto r, auto c) {
                                       return r < rows ? std::min(product(r, c), 100.0) : 7.0;
                                     }),
                                DType::kBF16));
    s.run();
  }
}

// Where its source is masked, a copy writes zeros.
TEST(ExactValues, CopiesOfMaskedSourcesWriteZeros) {
  for (DType dtype : {DType::kF32, DType::kBF16}) {
    for (bool engine : {false, true}) {
      for (std::int64_t shift : {0, 2, -2}) {
        ProgramBuilder p("masked_copy", 1);
        auto from = p.input("from", dtype, {13, 24});
        auto to = p.output("to", dtype, {20, 32}), cut = p.output("cut", dtype, {16, 24});
        Resource on = engine ? Resource::copy_engine(1) : Resource::sms(1);
        p.role("copy", on, p.range(1), [&](const Tile&) {
          p.copy(to.tile({0, 0}, 20, 32), from.tile({shift, shift * 4}, 20, 32));
          p.copy(cut.tile({0, 0}, 16, 24), from.tile({0, 0}, 16, 24).until_row(5).until_col(9));
        });
        Sample s(p.finish());
        auto at = [](std::int64_t r, std::int64_t c) {
          return r >= 0 && r < 13 && c >= 0 && c < 24 ? small(r, c) : 0;
        };
        s.given("from", made(13, 24, small));
        s.expected("to",
                   made(20, 32, [&](auto r, auto c) { return at(r + shift, c + shift * 4); }));
        s.expected("cut",
                   made(16, 24, [&](auto r, auto c) { return r < 5 && c < 9 ? small(r, c) : 0; }));
        s.run();
      }
    }
  }
}

TEST(ExactValues, IntegersKeepAllTheirBits) {
  ProgramBuilder p("integers", 1);
  auto x = p.input("x", DType::kI32, {32, 64}), ones = p.input("ones", DType::kI32, {32, 64});
  auto same = p.output("same", DType::kI32, {32, 64}),
       turned = p.output("turned", DType::kI32, {64, 32});
  auto rows = p.state("rows", DType::kI32, {32, 64}),
       number = p.output("number", DType::kI32, {32, 64});
  auto sums = p.output("sums", DType::kI32, {32, 1}),
       where = p.output("where", DType::kI32, {32, 1});
  auto wrapped = p.output("wrapped", DType::kI32, {32, 64});
  auto half = p.output("half", DType::kBF16, {32, 64});
  p.role("keep", Resource::sms(1), p.range(1), [&](const Tile&) {
    Value v = p.load(x.tile({0, 0}, 32, 64)), one = p.load(ones.tile({0, 0}, 32, 64));
    p.store(same.tile({0, 0}, 32, 64), v);
    p.store(turned.tile({0, 0}, 64, 32), v.T());
    p.store_rows(rows.tile({0, 0}, 32, 64), p.iota_rows(0, 32), v);
    p.store(number.tile({0, 0}, 32, 64), (one * 16777217.0) - 2147483647.0);
    p.store(sums.tile({0, 0}, 32, 1), row_sum(one * 1000001.0));
    p.store(where.tile({0, 0}, 32, 1), row_argmax(v));
    p.store(wrapped.tile({0, 0}, 32, 64), v * 3.0 + v - (one - v));
    p.store(half.tile({0, 0}, 32, 64), cast(v, DType::kBF16));
  });
  Sample s(p.finish());
  s.given("x", made(32, 64, large));
  s.given("ones", made(32, 64, [](auto, auto) { return 1.0; }));
  s.expected("same", made(32, 64, large));
  s.expected("turned", made(64, 32, [](auto r, auto c) { return large(c, r); }));
  s.given("rows", made(32, 64, small));
  s.expected("rows", made(32, 64, large));
  s.expected("number", made(32, 64, [](auto, auto) { return 16777217.0 - 2147483647.0; }));
  s.expected("sums", made(32, 1, [](auto, auto) { return 64000064.0; }));
  s.expected("where", made(32, 1, [](auto r, auto) {
               std::int64_t best = 0;
               for (std::int64_t c = 1; c < 64; ++c) best = large(r, c) > large(r, best) ? c : best;
               return static_cast<double>(best);
             }));
  s.expected("wrapped", made(32, 64, [](auto r, auto c) {
               auto wide = static_cast<std::int64_t>(large(r, c)) * 5 - 1;
               return static_cast<double>(static_cast<std::int32_t>(wide));
             }));
  s.expected("half", round_to(made(32, 64, large), DType::kBF16));
  s.run();
}

TEST(ExactValues, CastsToIntegersKeepTheirRange) {
  for (DType from : {DType::kF32, DType::kBF16, DType::kF16}) {
    auto floats = [](std::int64_t r, std::int64_t c) {
      constexpr double kEdges[] = {kNan, kInf,         -kInf,         3e9,
                                   -3e9, 2147483648.0, -2147483648.0, -0.99};
      return c < 8 ? kEdges[c]
                   : static_cast<double>((r * 64 + c) % 977 - 480) * (r % 2 ? 4e6 : 0.25);
    };
    const auto given = round_to(made(32, 64, floats), from);
    ProgramBuilder p("to_integers", 1);
    auto x = p.input("x", from, {32, 64});
    auto cut = p.output("cut", DType::kI32, {32, 64}),
         sums = p.output("sums", DType::kI32, {32, 64});
    p.role("cast", Resource::sms(1), p.range(1), [&](const Tile&) {
      Value v = p.load(x.tile({0, 0}, 32, 64));
      p.store(cut.tile({0, 0}, 32, 64), cast(v, DType::kI32));
      p.store(sums.tile({0, 0}, 32, 64), cast(v, DType::kI32) + 1.0);  // wrap
    });
    Sample s(p.finish());
    auto narrow = [](double v) {
      return std::isnan(v) ? 0 : std::clamp(std::trunc(v), -2147483648.0, 2147483647.0);
    };
    std::vector<double> wanted(given.size()), wrapped(given.size());
    std::ranges::transform(given, wanted.begin(), narrow);
    std::ranges::transform(wanted, wrapped.begin(),
                           [](double v) { return v == 2147483647.0 ? -2147483648.0 : v + 1; });
    s.given("x", given);
    s.expected("cut", wanted);
    s.expected("sums", wrapped);
    s.run();
  }
}

// Casts and stores truncate and saturate, sums and products wrap, as CPU ranks have it.
TEST(ExactValues, BytesKeepTheirRange) {
  for (DType byte : {DType::kI8, DType::kU8}) {
    const double least = byte == DType::kI8 ? -128 : 0, most = byte == DType::kI8 ? 127 : 255;
    auto wrapped = [&](double v) { return v - 256 * std::floor((v - least) / 256); };
    auto narrow = [&](double v) {
      return std::isnan(v) ? 0 : std::clamp(std::trunc(v), least, most);
    };
    auto bytes = [&](std::int64_t r, std::int64_t c) {
      return least + static_cast<double>((r * 64 + c * 7) % 256);
    };
    auto floats = [](std::int64_t r, std::int64_t c) {
      constexpr double kEdges[] = {kNan, kInf,   -kInf, 3e9,    -3e9, 127.5, 127.99, 128,
                                   -128, -128.9, -129,  255.99, 256,  -0.5,  0.99,   1e-40};
      return c < 16 ? kEdges[c] : static_cast<double>((r * 37 + c * 11) % 1201 - 600) / 4;
    };
    ProgramBuilder p("bytes", 1);
    auto x = p.input("x", byte, {32, 64}), y = p.input("y", byte, {32, 64});
    auto f = p.input("f", DType::kF32, {32, 64}), wide = p.input("wide", DType::kI32, {32, 64});
    auto same = p.output("same", byte, {32, 64}), turned = p.output("turned", byte, {64, 32});
    auto sums = p.output("sums", byte, {32, 64}), products = p.output("products", byte, {32, 64});
    auto quotients = p.output("quotients", byte, {32, 64});
    auto cut = p.output("cut", byte, {32, 64}), stored = p.output("stored", byte, {32, 64});
    auto nearest = p.output("nearest", byte, {32, 64}), number = p.output("number", byte, {32, 64});
    auto as_float = p.output("as_float", DType::kBF16, {32, 64});
    auto as_int = p.output("as_int", DType::kI32, {32, 64});
    auto largest = p.output("largest", byte, {32, 64});
    auto rows = p.state("rows", byte, {32, 64});
    p.role("keep", Resource::sms(1), p.range(1), [&](const Tile&) {
      auto all = [](const TensorRef& t) { return t.tile({0, 0}, 32, 64); };
      Value v = p.load(all(x)), w = p.load(all(y)), g = p.load(all(f));
      p.store(all(same), v);
      p.store(turned.tile({0, 0}, 64, 32), v.T());
      p.store(all(sums), v + w - 5.0);
      p.store(all(products), v * w);
      p.store(all(quotients), v / w);
      p.store(all(cut), cast(g, byte));
      p.store(all(stored), p.load(all(wide)));
      p.store(all(nearest), cast(round(g), byte));
      p.store(all(number), broadcast(p.splat(byte, 77), 32, 64));
      p.store(all(as_float), cast(v, DType::kBF16));
      p.store(all(as_int), v);
      p.store(all(largest), maximum(v, w));
      p.store_rows(all(rows), p.iota_rows(0, 32), where(v < w, v, w));
    });
    Sample s(p.finish());
    auto other = [&](std::int64_t r, std::int64_t c) { return bytes(r * 3 + 1, c * 5); };
    auto of = [&](auto fn) {
      return made(32, 64, [&](auto r, auto c) { return fn(bytes(r, c), other(r, c)); });
    };
    s.given("x", made(32, 64, bytes));
    s.given("y", made(32, 64, other));
    s.given("f", made(32, 64, floats));
    s.given("wide", made(32, 64, large));
    s.given("rows", made(32, 64, [](auto, auto) { return 0.0; }));
    s.expected("same", made(32, 64, bytes));
    s.expected("turned", made(64, 32, [&](auto r, auto c) { return bytes(c, r); }));
    s.expected("sums", of([&](double a, double b) { return wrapped(a + b - 5); }));
    s.expected("products", of([&](double a, double b) { return wrapped(a * b); }));
    s.expected("quotients",
               of([&](double a, double b) { return b == 0 ? 0 : wrapped(std::trunc(a / b)); }));
    s.expected("cut", made(32, 64, [&](auto r, auto c) { return narrow(floats(r, c)); }));
    s.expected("stored", made(32, 64, [&](auto r, auto c) { return narrow(large(r, c)); }));
    s.expected("nearest", made(32, 64, [&](auto r, auto c) {
                 double v = floats(r, c), even = 2 * std::round(v / 2);
                 bool tie = std::fabs(v - std::trunc(v)) == 0.5;
                 return narrow(tie ? even : std::round(v));
               }));
    s.expected("number", made(32, 64, [](auto, auto) { return 77.0; }));
    s.expected("as_float", made(32, 64, bytes));
    s.expected("as_int", made(32, 64, bytes));
    s.expected("largest", of([](double a, double b) { return std::max(a, b); }));
    s.expected("rows", of([](double a, double b) { return std::min(a, b); }));
    s.run();
  }
}

// A sum of integers is rounded once where it becomes 16 bits: 2^24 + 2^16 + 1 is nearer to the
// number above it than to that below, which is as near to what a float keeps of it.
TEST(ExactValues, IntegersAreRoundedOnceTo16Bits) {
  ProgramBuilder p("rounded_once", 1);
  auto x = p.input("x", DType::kI32, {1, 64});
  auto y = p.output("y", DType::kBF16, {1, 64}), z = p.output("z", DType::kF16, {1, 64});
  p.role("round", Resource::sms(1), p.range(1), [&](const Tile&) {
    Value v = p.load(x.tile({0, 0}, 1, 64));
    p.store(y.tile({0, 0}, 1, 64), cast(v, DType::kBF16));
    p.store(z.tile({0, 0}, 1, 64), cast(v / 65536.0, DType::kF16));
  });
  Values x_values = made(1, 64, [](auto, auto c) {
    double tie = static_cast<double>((1 << 25) + (1 << 17)), off = static_cast<double>(c % 5 - 2);
    return (c % 2 == 0 ? 1 : -1) * (tie * static_cast<double>(1 << c % 6) + off);
  });
  Sample s(p.finish());
  s.given("x", x_values);
  s.expected("y", round_to(x_values, DType::kBF16));
  Values quotients = x_values;
  for (double& v : quotients) v = std::trunc(v / 65536);
  s.expected("z", round_to(quotients, DType::kF16));
  s.run();
}

TEST(ExactValues, IntegersPassThroughPackets) {
  ProgramBuilder p("integer_packets", 2);
  auto x = p.input("x", DType::kI32, {37, 50});
  auto box = p.buffer("box", DType::kI32, {37, 50},
                      {.space = Space::kSymmetric, .num_slots = 2, .packet = true});
  auto y = p.output("y", DType::kI32, {37, 50});
  p.role("send", Resource::sms(2), p.range(3), [&](const Tile& t) {
    p.store_packet(box.on(1 - p.rank()).tile({t.index * 16, 0}, 16, 50),
                   p.load(x.tile({t.index * 16, 0}, 16, 50)));
  });
  p.role("take", Resource::sms(2), p.range(5), [&](const Tile& t) {
    p.store(y.tile({t.index * 8, 0}, 8, 50), p.load_packet(box.tile({t.index * 8, 0}, 8, 50)));
  });
  Sample s(p.finish());
  s.given("x", made(37, 50, large));
  s.expected("y", made(37, 50, large));
  s.run();
}

TEST(ExactValues, QuotientsOfIntegersAreRoundedTowardZero) {
  ProgramBuilder p("quotients", 1);
  auto x = p.input("x", DType::kI32, {32, 64}), by = p.input("by", DType::kI32, {32, 64});
  auto q = p.output("q", DType::kI32, {32, 64}), third = p.output("third", DType::kI32, {32, 64});
  p.role("divide", Resource::sms(1), p.range(1), [&](const Tile&) {
    Value v = p.load(x.tile({0, 0}, 32, 64));
    p.store(q.tile({0, 0}, 32, 64), v / p.load(by.tile({0, 0}, 32, 64)));
    p.store(third.tile({0, 0}, 32, 64), v / -3.0);
  });
  Sample s(p.finish());
  auto value = [](std::int64_t r, std::int64_t c) {
    return r == 0 ? -2147483648.0 : r < 16 ? small(r, c) : large(r, c);
  };
  auto divisor = [](std::int64_t r, std::int64_t c) {
    return static_cast<double>((r + c) % 7 - 3);
  };
  s.given("x", made(32, 64, value));
  s.given("by", made(32, 64, divisor));
  s.expected("q", made(32, 64, [&](auto r, auto c) {
               double d = divisor(r, c), quotient = d == 0 ? 0 : std::trunc(value(r, c) / d);
               return quotient == 2147483648.0 ? -quotient : quotient + 0.0;
             }));
  s.expected("third",
             made(32, 64, [&](auto r, auto c) { return std::trunc(value(r, c) / -3) + 0.0; }));
  s.run();
}

// Extrema leave NaN out, where there is anything else.
TEST(ExactValues, OfRowsOfNothingButNanIsLeftNan) {
  for (std::int64_t cols : {1, 40, 1000}) {  // within a warp and over several
    constexpr std::int64_t kRows = 24;
    ProgramBuilder p("nan_rows", 1);
    auto x = p.input("x", DType::kF32, {kRows, cols});
    auto largest = p.output("largest", DType::kF32, {kRows, 1});
    auto least = p.output("least", DType::kF32, {kRows, 1});
    auto below = p.output("below", DType::kF32, {1, cols});
    auto where_largest = p.output("where", DType::kI32, {kRows, 1});
    p.role("reduce", Resource::sms(1), p.range(1), [&](const Tile&) {
      Value v = p.load(x.tile({0, 0}, kRows, cols));
      // NaN and infinities as numbers, which can be compared.
      auto told = [](const Value& u) {
        return where(u == u, maximum(minimum(u, 1e9), -1e9), 1234.0);
      };
      p.store(largest.tile({0, 0}, kRows, 1), told(row_max(v)));
      p.store(least.tile({0, 0}, kRows, 1), told(row_min(v)));
      p.store(where_largest.tile({0, 0}, kRows, 1), row_argmax(v));
      p.store(below.tile({0, 0}, 1, cols), told(col_max(v)));
    });
    // Rows of NaN, of infinities, and mixed; and a column of NaN.
    auto at = [&](std::int64_t r, std::int64_t c) {
      if (r % 4 == 0 || c == 3 || (r + c) % 5 == 0) return kNan;
      return r % 4 == 1 ? -kInf : r % 4 == 2 ? kInf : small(r, c);
    };
    auto extreme = [&](std::int64_t n, double sign, const std::function<double(std::int64_t)>& of) {
      double best = kNan;
      for (std::int64_t i = 0; i < n; ++i) {
        if (std::isnan(best) || sign * of(i) > sign * best) best = std::isnan(of(i)) ? best : of(i);
      }
      return std::isnan(best) ? 1234.0 : std::clamp(best, -1e9, 1e9);
    };
    auto of_row = [&](std::int64_t r, double sign) {
      return extreme(cols, sign, [&](std::int64_t c) { return at(r, c); });
    };
    Sample s(p.finish());
    s.given("x", made(kRows, cols, at));
    s.expected("largest", made(kRows, 1, [&](auto r, auto) { return of_row(r, 1); }));
    s.expected("least", made(kRows, 1, [&](auto r, auto) { return of_row(r, -1); }));
    s.expected("below", made(1, cols, [&](auto, auto c) {
                 return extreme(kRows, 1, [&](std::int64_t r) { return at(r, c); });
               }));
    s.expected("where", made(kRows, 1, [&](auto r, auto) {
                 std::int64_t c = 0;
                 while (c < cols && std::clamp(at(r, c), -1e9, 1e9) != of_row(r, 1)) ++c;
                 return static_cast<double>(c == cols ? 0 : c);
               }));
    s.run();
  }
}

TEST(ExactValues, IndicesAreDividedByNegativeOnes) {
  ProgramBuilder p("divided", 1);
  auto x = p.input("x", DType::kF32, {32, 64});
  auto y = p.output("y", DType::kF32, {16, 64});
  p.role("pick", Resource::sms(1), p.range(16), [&](const Tile& t) {
    Index d = p.let("d", select(t.index % 2 == 0, Index(-3), Index(3)));
    Index quotient = (t.index - 7) / d + 16, rest = (t.index - 7) % d + 8, plain = t.index % -5 + 8;
    p.store(y.tile({t.index, 0}, 1, 64),
            p.load(x.tile({quotient, 0}, 1, 64)) + p.load(x.tile({rest, 0}, 1, 64)) +
                p.load(x.tile({plain, 0}, 1, 64)) + p.load(x.tile({t.index % d - 1, 0}, 1, 64)));
  });
  auto floored = [](std::int64_t a, std::int64_t b) {
    return static_cast<std::int64_t>(std::floor(static_cast<double>(a) / static_cast<double>(b)));
  };
  auto rest = [&](std::int64_t a, std::int64_t b) { return a - floored(a, b) * b; };
  auto row = [](std::int64_t r, std::int64_t c) { return r < 0 ? 0 : small(r, c); };
  Sample s(p.finish());
  s.given("x", made(32, 64, small));
  s.expected("y", made(16, 64, [&](auto t, auto c) {
               std::int64_t d = t % 2 == 0 ? -3 : 3;
               return row(floored(t - 7, d) + 16, c) + row(rest(t - 7, d) + 8, c) +
                      row(rest(t, -5) + 8, c) + row(rest(t, d) - 1, c);
             }));
  s.run();
}

// y = x * alpha + beta, rows from `first` on, of floats and an integer of the launch.
Program scaled_rows(std::int64_t rows, std::int64_t cols) {
  ProgramBuilder p("scaled_rows", 1);
  Index first = p.scalar("first", rows);
  FloatScalar alpha = p.float_scalar("alpha"), beta = p.float_scalar("beta");
  TensorRef x = p.input("x", DType::kF32, {rows, cols});
  TensorRef y = p.output("y", DType::kF32, {rows, cols});
  p.role("scale", Resource::sms(1), p.range(1), [&](const Tile&) {
    Value v = p.load(x.tile({0, 0}, rows, cols));
    Value chosen = p.iota_rows(0, rows) >= p.splat(DType::kI32, first);
    p.store(y.tile({0, 0}, rows, cols), where(chosen, v * p.splat(alpha) + p.splat(beta), v));
  });
  return p.finish();
}

TEST(ExactValues, FloatScalarsAreTakenAsTheyAre) {
  constexpr std::int64_t kRows = 8, kCols = 16;
  const float kTiny = std::numeric_limits<float>::denorm_min();
  const float kMost = std::numeric_limits<float>::max();
  using Pair = std::pair<float, float>;
  // Products that are exact, since kernels may round product and sum together.
  for (auto [alpha, beta] : {Pair{0.5F, -0.25F},
                             {-3.0F, 1e-30F},
                             {0.0F, kMost},
                             {1.0F, -0.0F},
                             {0.0F, kTiny},
                             {0.0F, -kMost},
                             {0.125F, 16777216.0F}}) {
    Sample s(scaled_rows(kRows, kCols), {3, scalar_of_float(alpha), scalar_of_float(beta)});
    s.given("x", made(kRows, kCols, small));
    s.expected("y", made(kRows, kCols, [=](auto r, auto c) {
                 double x = small(r, c);
                 return r < 3 ? x : static_cast<double>(static_cast<float>(x) * alpha + beta);
               }));
    s.run();
  }
}

}  // namespace
}  // namespace stretto
