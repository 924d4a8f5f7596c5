// Values and indices that kernels have no form of. A user who loses this gets an error of the CUDA
// compiler, or a kernel that computes with a part of an index.
#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "stretto/base/errors.h"
#include "stretto/codegen/kernel_testing.h"
#include "stretto/lang/program_builder.h"

namespace stretto::refused_values_test {
namespace {

std::string refusal(const Program& program) {
  try {
    generate(program);
  } catch (const UserError& e) {
    return e.what();
  }
  return "";
}

Program copied(DType from, DType to) {
  ProgramBuilder p("copied", 1);
  auto x = p.input("x", from, {8, 64});
  auto y = p.output("y", to, {8, 64});
  p.role("copy", Resource::sms(1), p.range(1), [&](const Tile&) {
    p.store(y.tile({0, 0}, 8, 64), p.load(x.tile({0, 0}, 8, 64)));
  });
  return p.finish();
}

TEST(RefusedValues, OfWideIntegers) {
  EXPECT_NE(refusal(copied(DType::kI64, DType::kI32)).find("values of int64"), std::string::npos);
  EXPECT_EQ(refusal(copied(DType::kI32, DType::kI64)), "");
  expect_clean_build(generate(copied(DType::kI32, DType::kI64)));
}

// Loaded, computed with, cast and stored.
TEST(RefusedValues, BytesAreNot) {
  for (DType byte : {DType::kI8, DType::kU8}) {
    for (DType other : {DType::kI8, DType::kU8, DType::kI32, DType::kBool}) {
      EXPECT_EQ(refusal(copied(byte, other)), "");
      EXPECT_EQ(refusal(copied(other, byte)), "");
    }
    expect_clean_build(generate(copied(byte, DType::kI32)));
    expect_clean_build(generate(copied(DType::kI32, byte)));
    ProgramBuilder p("computed", 1);
    auto x = p.input("x", byte, {64, 128});
    auto y = p.output("y", byte, {64, 128});
    auto z = p.output("z", DType::kBF16, {64, 128});
    p.role("compute", Resource::sms(1), p.range(1), [&](const Tile&) {
      Value v = p.load(x.tile({0, 0}, 64, 128));
      Value scaled = cast(v, DType::kF32) * 0.75;
      p.store(y.tile({0, 0}, 64, 128), where(v > 3.0, v * 3.0 + v, cast(round(scaled), byte)));
      p.store(z.tile({0, 0}, 64, 128), scaled);
    });
    expect_clean_build(generate(p.finish()));
  }
}

// A packet has four bytes of payload.
TEST(RefusedValues, PacketsOfBytes) {
  ProgramBuilder p("packets", 2);
  auto x = p.input("x", DType::kI8, {8, 64});
  auto y = p.output("y", DType::kI8, {8, 64});
  auto box = p.buffer("box", DType::kI8, {8, 64},
                      {.space = Space::kSymmetric, .num_slots = 2, .packet = true});
  p.role("exchange", Resource::sms(1), p.range(1), [&](const Tile&) {
    p.store_packet(box.on(1 - p.rank()).tile({0, 0}, 8, 64), p.load(x.tile({0, 0}, 8, 64)));
    p.store(y.tile({0, 0}, 8, 64), p.load_packet(box.tile({0, 0}, 8, 64)));
  });
  std::string why = refusal(p.finish());
  EXPECT_NE(why.find("int8 cannot be put in packets"), std::string::npos) << why;
}

// Copies of regions take bytes as they are.
TEST(RefusedValues, BytesAreCopied) {
  ProgramBuilder p("bytes", 1);
  auto x = p.input("x", DType::kU8, {8, 64});
  auto y = p.output("y", DType::kU8, {8, 64});
  p.role("copy", Resource::sms(1), p.range(1), [&](const Tile&) {
    p.copy(y.tile({0, 0}, 8, 64), x.tile({0, 0}, 8, 64));
  });
  Program program = p.finish();
  EXPECT_EQ(refusal(program), "");
  expect_clean_build(generate(program));
}

TEST(RefusedValues, ProductsOfThreeWarps) {
  ProgramBuilder p("guest_product", 1);
  auto a = p.input("a", DType::kBF16, {128, 256}), b = p.input("b", DType::kBF16, {64, 256});
  auto c = p.output("c", DType::kF32, {128, 64}), d = p.output("d", DType::kF32, {128, 64});
  auto multiply = [&](const TensorRef& out) {
    return [&p, &a, &b, out](const Tile&) {
      Value acc = p.zeros(DType::kF32, 128, 64);
      p.loop(4, [&](const Index& i) {
        acc =
            dot(acc, p.load(a.tile({0, i * 64}, 128, 64)), p.load(b.tile({0, i * 64}, 64, 64)).T());
      });
      p.store(out.tile({0, 0}, 128, 64), acc);
    };
  };
  int host = p.role("host", Resource::sms(1).pipelined(3), p.range(1), multiply(c));
  p.role("guest", Resource::sms(1).beside_role(host), p.range(1), multiply(d));
  std::string why = refusal(p.finish());
  EXPECT_NE(why.find("96 threads"), std::string::npos) << why;
  EXPECT_NE(why.find("refused_values_test.cc:"), std::string::npos) << why;
}

// y[t] = x[row(t)].
Program picks(std::int64_t tiles, const std::function<Index(const Index&)>& row,
              const std::function<Index(const Index&)>& when) {
  ProgramBuilder p("picks", 1);
  auto x = p.input("x", DType::kF32, {8, 64});
  auto y = p.output("y", DType::kF32, {tiles, 64});
  p.role("pick", Resource::sms(1), p.range(tiles), [&](const Tile& t) {
    auto store = [&](const Index& r) {
      p.store(y.tile({t.index, 0}, 1, 64), p.load(x.tile({r, 0}, 1, 64)));
    };
    p.when(
        when(t.index), [&] { store(row(t.index)); }, [&] { store(0); });
  });
  return p.finish();
}

TEST(RefusedValues, IndicesThatAreWideAtTheFirstTile) {
  constexpr std::int64_t kBig = 400000000;
  auto row = [](const Index& t) { return (7 - t) * kBig / kBig; };
  EXPECT_NE(refusal(picks(8, row, [](const Index&) { return Index(1); })).find("32 bits"),
            std::string::npos);
  EXPECT_EQ(refusal(picks(8, row, [](const Index& t) { return 3 < t; })), "") << "never there";
}

// Divisors of either sign take a form of their own; those that are shown to be positive do not.
TEST(RefusedValues, NegativeDivisorsTakeTheirOwnForm) {
  auto text = [](const std::function<Index(const Index&)>& row) {
    return generate(picks(8, row, [](const Index&) { return Index(1); })).source;
  };
  std::string plain = text([](const Index& t) { return t / 3 + t % 5; });
  EXPECT_NE(plain.find("quotient_of("), std::string::npos);
  EXPECT_EQ(plain.find("_any("), std::string::npos);
  EXPECT_EQ(text([](const Index& t) { return t / (t % 3 + 1) + t % max(t, 1); }).find("_any("),
            std::string::npos);
  EXPECT_NE(text([](const Index& t) { return t / (t - 9) + 7; }).find("floor_div_any("),
            std::string::npos);
  EXPECT_NE(text([](const Index& t) { return t % (t - 9) + 7; }).find("floor_mod_any("),
            std::string::npos);
}

// The last band of rows has fewer, which is a difference, and at least one.
TEST(RefusedValues, BandsOfTilesAreDividedPlainly) {
  for (int turns : {1, 2}) {
    ProgramBuilder p("bands", 1);
    Index m = p.extent("m", 4096);
    auto a = p.input("a", DType::kBF16, {m, 256}), b = p.input("b", DType::kBF16, {1024, 256});
    auto c = p.output("c", DType::kBF16, {m, 1024});
    Resource sms = Resource::sms(4).pipelined(3);
    if (turns > 1) sms = sms.ping_pong(turns);
    std::int64_t rows = turns > 1 ? 64 : 128;
    p.role("multiply", sms, p.grid(c, rows, 128).raster(8), [&](const Tile& t) {
      Value acc = p.zeros(DType::kF32, rows, 128);
      p.loop(4, [&](const Index& i) {
        acc = dot(acc, p.load(a.tile({t.row, i * 64}, rows, 64)),
                  p.load(b.tile({t.col, i * 64}, 128, 64)).T());
      });
      p.store(c.tile({t.row, t.col}, rows, 128), cast(acc, DType::kBF16));
    });
    std::string source = generate(p.finish()).source;
    EXPECT_NE(source.find("min("), std::string::npos);
    EXPECT_EQ(source.find("_any("), std::string::npos) << source;
  }
}

}  // namespace
}  // namespace stretto::refused_values_test
