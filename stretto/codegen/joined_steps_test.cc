// Vectors of several steps that are loaded at once. A user who loses this gets products with scales
// whose columns cost more than the products do; one for whom it is done wrongly, the scales of
// other steps.
#include <gtest/gtest.h>

#include "stretto/codegen/kernel_testing.h"
#include "stretto/lang/program_builder.h"

namespace stretto::joined_steps_test {
namespace {

struct Sample {
  std::int64_t steps = 16, width = 16;  // of k, and columns of the scales of rows
  int first = 0;                        // column that the first step takes
  bool own_row = false;                 // each step takes rows of its own
  bool of_columns = false;              // scales of columns beside them, [steps, n]
  int num_stages = 3;
};

// c = a * b^T in blocks of 128 along k, each with a scale for every row.
Program scaled(const Sample& s) {
  constexpr std::int64_t kTile = 128;
  ProgramBuilder p("scaled", 1);
  auto a = p.input("a", DType::kF8E4M3, {256, s.steps * kTile});
  auto b = p.input("b", DType::kF8E4M3, {256, s.steps * kTile});
  auto of_a = p.input("of_a", DType::kF32, {256, s.width});
  auto of_b = p.input("of_b", DType::kF32, {s.steps, 256});
  auto c = p.output("c", DType::kBF16, {256, 256});
  Resource sms = Resource::sms(2).pipelined(s.num_stages);
  p.role("multiply", sms, p.grid(c, kTile, kTile), [&](const Tile& t) {
    Value acc = p.zeros(DType::kF32, kTile, kTile);
    p.loop(s.steps, [&](const Index& i) {
      Index row = s.own_row ? t.row + i : Index(t.row);
      Value rows = p.load(of_a.tile({row, i + s.first}, kTile, 1));
      Value cols =
          s.of_columns ? p.load(of_b.tile({i, t.col}, 1, kTile)) : p.full(DType::kF32, 1, kTile, 2);
      acc = dot_scaled(acc, p.load(a.tile({t.row, i * kTile}, kTile, kTile)),
                       p.load(b.tile({t.col, i * kTile}, kTile, kTile)).T(), {rows, cols});
    });
    p.store(c.tile({t.row, t.col}, kTile, kTile), cast(acc, DType::kBF16));
  });
  return p.finish();
}

bool joined(const Sample& s) {
  return generate(scaled(s)).source.find("SmemColumn") != std::string::npos;
}

TEST(JoinedSteps, ColumnsOfFourStepsAreCopiedAsRows) {
  GeneratedKernel kernel = generate(scaled({}));
  expect_lines(
      kernel.source,
      {"using MultiplyOfASlot = SmemColumn<float, 128, 4>;", "% 4 == 0) {",
       "&empty0[ring0.slot() + 3], ring0.round() ^ 1);",
       "fill_slot<4, true, 96>(SmemVector<float, 128, 4>{", "slot() / 4 * 2048}", "min(4, 16 - ",
       "mbarrier_arrive_after_copies(&full0[ring0.slot()]);", "ring0.next();", "// consumer",
       "&full0[0]", "MultiplyOfASlot", "&empty0[3]", "&full0[4]", "MultiplyOfASlot", "&empty0[7]"});
  expect_clean_build(kernel);
}

// Whose slots keep their form.
TEST(JoinedSteps, WhatSharesTheirBarriersIsFilledStepByStep) {
  GeneratedKernel kernel = generate(scaled({.of_columns = true}));
  expect_lines(kernel.source, {"SmemColumn<float, 128, 4>", "SmemVector<float, 1, 128>",
                               "% 4 == 0) {", "fill_slot<4, true, 96>(SmemVector<float, 128, 4>{",
                               "u < 4; ++u) {", "= first + u;", "(ring0.slot() + u) * 512}",
                               "mbarrier_arrive_after_copies(&full0["});
  expect_clean_build(kernel);
}

// Rounds that end elsewhere in the ring: whether a step is the first of four is known as it runs.
TEST(JoinedSteps, ALoopOfAnyMultipleOfFourStepsWillDo) {
  GeneratedKernel kernel = generate(scaled({.steps = 12, .width = 12}));
  expect_lines(kernel.source,
               {"SmemColumn<float, 128, 4>", "if (ring0.slot() % 4 == 0) mbarrier_wait_acquire_cta",
                "ring0.slot() / 4 * 2048 + ring0.slot() % 4 * 4",
                "if (freed0.slot() % 4 == 3) if (team.tid % 32 == 0) mbarrier_arrive_release_cta"});
  expect_clean_build(kernel);
}

TEST(JoinedSteps, OtherColumnsAreCopiedOneByOne) {
  EXPECT_TRUE(joined({}));
  EXPECT_FALSE(joined({.steps = 14})) << "not a multiple of four steps";
  EXPECT_FALSE(joined({.width = 18})) << "rows that begin between units of 16 bytes";
  EXPECT_FALSE(joined({.width = 20, .first = 1})) << "a column between them";
  EXPECT_FALSE(joined({.own_row = true})) << "other rows in each step";
}

}  // namespace
}  // namespace stretto::joined_steps_test
