// Plans on CPU ranks. If these fail, a model's step computes something else with shared memory.
#include "stretto/step/cpu_step.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "stretto/base/errors.h"
#include "stretto/step/plan_testing.h"

namespace stretto::step {
namespace {

constexpr std::size_t kCount = kTestRows * kTestCols;

std::vector<float> run_chain(const CpuStepOptions& options, std::int64_t rows) {
  std::vector<float> weight(kCount), in(kCount), out;
  for (std::size_t i = 0; i < kCount; ++i) {
    weight[i] = static_cast<float>(i % 7);
    in[i] = static_cast<float>(i % 11);
  }
  World world({.size = 1});
  world.run([&](Rank& rank) {
    CpuStep step({rank, rank}, chain(9), {{"weight", reinterpret_cast<std::byte*>(weight.data())}},
                 options);
    std::memcpy(step.data("in"), in.data(), kCount * sizeof(float));
    int nodes = 0;
    for (int launch = 0; launch < 2; ++launch) {
      step.run("body", {rows, 0}, [&](std::size_t) { ++nodes; });
    }
    EXPECT_EQ(nodes, rows == 0 ? 0 : 20);
    const auto* got = reinterpret_cast<const float*>(step.data("out"));
    out.assign(got, got + rows * kTestCols);
  });
  return out;
}

TEST(CpuStep, SharedAndPoisonedMemoryChangesNothing) {
  std::vector<float> plain = run_chain({.sharing = Sharing::kNone}, kTestRows);
  // x0 = in + w + 1, x1 = x0 + w + 1/2, then each of the two before.
  std::vector<float> expected(kCount);
  for (std::size_t i = 0; i < kCount; ++i) {
    float w = static_cast<float>(i % 7), a = static_cast<float>(i % 11) + w + 1, b = a + w + 0.5f;
    for (int n = 2; n < 10; ++n) std::tie(a, b) = std::pair{b, b + a + (n % 2 == 0 ? 1.0f : 0.5f)};
    expected[i] = b;
  }
  EXPECT_EQ(plain, expected);
  EXPECT_EQ(run_chain({}, kTestRows), expected);
  EXPECT_EQ(run_chain({.poison = true}, kTestRows), expected);
  EXPECT_EQ(run_chain({.poison = true}, 2).size(), 2u * kTestCols);
  run_chain({}, 0);
}

TEST(CpuStep, BeginsBehindRowsAndKeepsState) {
  Plan plan = chain(1);
  // The second node takes rows from `some` on, and writes them there.
  Size some = Size::of_extent(1);
  Size rest{.terms = {{0, 1}, {1, -1}}};
  plan.nodes[1].extents = {rest};
  plan.nodes[1].bindings[0].from = plan.nodes[1].bindings[2].from = some;
  std::vector<float> weight(kCount, 2.0f);
  World world({.size = 1});
  world.run([&](Rank& rank) {
    CpuStep step({rank, rank}, plan, {{"weight", reinterpret_cast<std::byte*>(weight.data())}}, {});
    auto* in = reinterpret_cast<float*>(step.data("in"));
    for (std::size_t i = 0; i < kCount; ++i) in[i] = static_cast<float>(i / kTestCols);
    auto* out = reinterpret_cast<float*>(step.data("out"));
    std::fill(out, out + kCount, -1.0f);
    step.run("body", {5, 3});
    for (std::int64_t row = 0; row < kTestRows; ++row) {
      bool written = row >= 3 && row < 5;
      EXPECT_EQ(out[row * kTestCols], written ? static_cast<float>(row) + 5.5f : -1.0f) << row;
    }
  });
}

TEST(CpuStep, SaysWhatItIsNotGiven) {
  World world({.size = 1});
  world.run([&](Rank& rank) {
    EXPECT_THROW(CpuStep({rank, rank}, chain(2), {}), UserError);
    Plan wrong = chain(2);
    wrong.nodes[0].bindings[0].buffer = 3;
    EXPECT_THROW(CpuStep({rank, rank}, wrong, {}), UserError);
  });
}

// What other ranks address cannot be the caller's.
TEST(CpuStep, SymmetricStatesAreTheSteps) {
  Plan plan{.name = "kept"};
  plan.extents = {{"rows", kTestRows}};
  plan.buffers = {{.name = "x", .kind = BufferKind::kInput},
                  {.name = "kept", .kind = BufferKind::kState},
                  {.name = "out", .kind = BufferKind::kOutput}};
  for (Buffer& b : plan.buffers) b.shape = {Size::of_extent(0), Size::of(kTestCols)};
  plan.buffers[1].shape[0] = Size::of(8);
  plan.buffers[1].symmetric = true;
  plan.programs = {keep_program()};
  plan.nodes = {{.name = "keep",
                 .program = 0,
                 .bindings = {{"x", 0, {}}, {"kept", 1, {}}, {"out", 2, {}}},
                 .extents = {Size::of_extent(0)}}};
  plan.sections = {{"body", 0, 1}};
  EXPECT_GE(assign(plan).symmetric_bytes, 8 * kTestCols * sizeof(float));
  World world({.size = 1});
  world.run([&](Rank& rank) {
    CpuStep step({rank, rank}, plan, {});
    auto* x = reinterpret_cast<float*>(step.data("x"));
    const auto* out = reinterpret_cast<const float*>(step.data("out"));
    std::fill_n(x, kTestCols, 3.0f);
    step.run("body", {1});
    std::fill_n(x, kTestCols, 4.0f);
    step.run("body", {1});
    EXPECT_EQ(out[0], 7.0f) << "the step before left 3";
  });
}

}  // namespace
}  // namespace stretto::step
