// Slots that are constants in the text of a kernel. A user who loses this has products that compute
// addresses between matrix instructions, or read a slot that is not the one that was filled.
#include <gtest/gtest.h>

#include <regex>

#include "stretto/base/errors.h"
#include "stretto/codegen/kernel_testing.h"
#include "stretto/lang/program_builder.h"

namespace stretto::fixed_rings_test {
namespace {

struct Sample {
  std::int64_t steps = 16;
  int num_stages = 4;
  int stagger = 0;
  bool twice = false;   // a second loop of as many steps
  bool branch = false;  // steps that some tiles take and others do not
};

Program product(const Sample& s) {
  constexpr std::int64_t kTile = 128, kStep = 64;
  ProgramBuilder p("product", 1);
  Index m = p.extent("m", 512);
  auto a = p.input("a", DType::kBF16, {m, s.steps * kStep});
  auto b = p.input("b", DType::kBF16, {512, s.steps * kStep});
  auto c = p.output("c", DType::kBF16, {m, 512});
  Resource sms = Resource::sms(4).pipelined(s.num_stages).staggered(s.stagger);
  p.role("multiply", sms, p.grid(c, kTile, kTile), [&](const Tile& t) {
    Value acc = p.zeros(DType::kF32, kTile, kTile);
    auto add = [&] {
      p.loop(s.steps, [&](const Index& i) {
        acc = dot(acc, p.load(a.tile({t.row, i * kStep}, kTile, kStep)),
                  p.load(b.tile({t.col, i * kStep}, kTile, kStep)).T());
      });
    };
    s.branch ? p.when(t.row < m, add) : add();
    if (s.twice) add();
    p.store(c.tile({t.row, t.col}, kTile, kTile), cast(acc, DType::kBF16));
  });
  return p.finish();
}

// The consumer's part of the text.
std::string consumer(const GeneratedKernel& kernel) {
  return kernel.source.substr(kernel.source.find("// consumer"));
}

// What the consumer does with slots, one after the other: "w2" waits for slot 2, "s2" reads its
// factors, "f1" frees slot 1, "r" begins a round, "{" opens and "}" closes a loop that it repeats.
std::string slots(const GeneratedKernel& kernel) {
  std::string text = consumer(kernel), out;
  std::regex what(
      "mbarrier_wait_acquire_cta\\(&full0\\[(\\w+)|BSlot s\\d+\\{smem \\+ \\d+ \\+ (\\w+) \\*|"
      "empty0\\[(\\w+)|(round0 \\^= 1)|(for \\(int first_)|(wgmma_wait<0>)");
  for (std::sregex_iterator at(text.begin(), text.end(), what), end; at != end; ++at) {
    const char* letters = "wsfr{}";
    for (std::size_t i = 1; i <= 6; ++i) {
      if (!(*at)[i].matched) continue;
      out += (out.empty() ? "" : " ") + std::string(1, letters[i - 1]);
      if (i <= 3) out += (*at)[i].str();
    }
  }
  return out;
}

// The first step of all has nothing to free; every other one frees the slot before its own.
constexpr const char* kFourSteps = "{ w0 s0 f3 w1 s1 f0 w2 s2 f1 w3 s3 r f2 } f3";

TEST(FixedRings, ALoopOfWholeRoundsIsWrittenOutInOne) {
  GeneratedKernel kernel = generate(product({}));
  EXPECT_EQ(slots(kernel), kFourSteps) << kernel.source;
  expect_lines(consumer(kernel),
               {"u32 round0 = 0;", "const Origin origin = origin_of(smem, team);", "first_",
                "+= 4) {", "mbarrier_wait_acquire_cta(&full0[0], round0);",
                "dot_async<128, 64, false>(", "FixedOperand<MultiplyASlot, false>{{", "origin);",
                "if ((0 < ", "&empty0[3]", "&full0[1], round0);", "wgmma_wait<1>();"});
  // In the copies but the first there is always a step before.
  EXPECT_EQ(consumer(kernel).find("if ((0 < "), consumer(kernel).rfind("if ((0 < "));
  EXPECT_EQ(consumer(kernel).find("ring0"), std::string::npos) << kernel.source;
  // Who loads takes as little time as ever.
  EXPECT_NE(kernel.source.find("Ring<4> ring0;"), std::string::npos);
  expect_clean_build(kernel);
}

TEST(FixedRings, OneLoopAfterAnotherBeginsWhereThatEnded) {
  GeneratedKernel kernel = generate(product({.twice = true}));
  EXPECT_EQ(slots(kernel), std::string(kFourSteps) + " " + kFourSteps) << kernel.source;
  expect_clean_build(kernel);
  // Neither has whole rounds of three, though both together have.
  std::string text = slots(generate(product({.steps = 12, .num_stages = 5, .twice = true})));
  EXPECT_EQ(text.find('{'), std::string::npos) << text;
}

TEST(FixedRings, ABranchOfWholeRoundsMayBeLeftOut) {
  GeneratedKernel kernel = generate(product({.twice = true, .branch = true}));
  EXPECT_EQ(slots(kernel), std::string(kFourSteps) + " " + kFourSteps) << kernel.source;
  expect_clean_build(kernel);
}

TEST(FixedRings, RoundsThatEndElsewhereKeepTheirCounter) {
  for (Sample s : {Sample{.steps = 18}, Sample{.steps = 16, .num_stages = 3}}) {
    GeneratedKernel kernel = generate(product(s));
    expect_lines(consumer(kernel), {"Ring<", "freed0;", "&full0[ring0.slot()], ring0.round());",
                                    "ring0.next();", "Operand<", "(0 < "});
    EXPECT_EQ(consumer(kernel).find("Fixed"), std::string::npos) << kernel.source;
  }
}

TEST(FixedRings, AStaggerEndsALoopOfCopies) {
  GeneratedKernel kernel = generate(product({.stagger = 2}));
  EXPECT_EQ(slots(kernel), kFourSteps);
  expect_lines(consumer(kernel), {"= max(0, 16 - 2);", "+= 4) {", "== alone_", "take_turn(team);",
                                  "&full0[0]", "== alone_", "&full0[3]", "pass_turn<2>(team);"});
  expect_clean_build(kernel);
}

// Products of blocks that are scaled, sixteen steps together: four rounds of the slots of factors,
// and two of those of scales, of which four are handed over at once.
Program scaled_product(int stagger = 0, ProductOrder order = ProductOrder::kAhead) {
  constexpr std::int64_t kTile = 128;
  ProgramBuilder p("scaled", 1);
  auto a = p.input("a", DType::kF8E4M3, {256, 2048}), b = p.input("b", DType::kF8E4M3, {256, 2048});
  auto of_a = p.input("of_a", DType::kF32, {256, 16}), of_b = p.input("of_b", DType::kF32, {2, 16});
  auto c = p.output("c", DType::kBF16, {256, 256});
  Resource sms = Resource::sms(2).pipelined(4).staggered(stagger).multiplying(order);
  p.role("multiply", sms, p.grid(c, kTile, kTile), [&](const Tile& t) {
    Value acc = p.zeros(DType::kF32, kTile, kTile);
    p.loop(2048 / kTile, [&](const Index& i) {
      Value rows = p.load(of_a.tile({t.row, i}, kTile, 1));
      Value cols = broadcast(p.load(of_b.tile({t.n, i}, 1, 1)), 1, kTile);
      acc = dot_scaled(acc, p.load(a.tile({t.row, i * kTile}, kTile, kTile)),
                       p.load(b.tile({t.col, i * kTile}, kTile, kTile)).T(), {rows, cols});
    });
    p.store(c.tile({t.row, t.col}, kTile, kTile), cast(acc, DType::kBF16));
  });
  return p.finish();
}

TEST(FixedRings, ScaledProductsHaveFixedFactorsAndScales) {
  GeneratedKernel kernel = generate(scaled_product());
  std::string text = consumer(kernel);
  EXPECT_EQ(text.find("ring"), std::string::npos) << kernel.source;
  expect_lines(text, {"&full1[0], round1);", "&full1[1], round1);", "&full0[0], round0);",
                      "&empty1[0]", "&full1[3], round1);", "round1 ^= 1;", "&empty0[3]",
                      "&full0[4], round0);", "&full1[3], round1);", "round0 ^= 1;", "&empty0[7]"});
  for (const char* between : {"&full0[1]", "&full0[7]", "&empty0[0]", "&empty0[6]"}) {
    EXPECT_EQ(text.find(between), std::string::npos) << between << kernel.source;
  }
  expect_clean_build(kernel);
}

// Of rounds of sixteen steps, four slots do not hold the last while another warpgroup is in its
// own.
TEST(FixedRings, OnlyScaledProductsThatAreAwaitedAtOnceEndApart) {
  try {
    generate(scaled_product(1));
    FAIL() << "not refused";
  } catch (const UserError& e) {
    EXPECT_NE(std::string(e.what()).find("a stagger of products that threads take further"),
              std::string::npos)
        << e.what();
  }
  GeneratedKernel kernel = generate(scaled_product(1, ProductOrder::kAwaited));
  expect_lines(consumer(kernel), {"= max(0, 16 - 1);", "== alone_", "take_turn(team);",
                                  "dot_async<", "pass_turn<2>(team);"});
  expect_clean_build(kernel);
}

}  // namespace
}  // namespace stretto::fixed_rings_test
