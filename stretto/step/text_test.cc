// What is printed is read back; what is not a plan is refused with its place. If these fail, a step
// that was dumped is not the one that ran.
#include "stretto/step/text.h"

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <random>

#include "stretto/base/errors.h"
#include "stretto/base/test_seed.h"
#include "stretto/step/check.h"
#include "stretto/step/plan_testing.h"

namespace stretto::step {
namespace {

std::string refusal(const std::string& text) {
  try {
    parse(text, "plan");
  } catch (const UserError& e) {
    return e.what();
  }
  return "";
}

TEST(StepText, RoundTrips) {
  Plan plan = chain(4);
  std::string text = print(plan);
  Plan again = parse(text, "plan");
  EXPECT_EQ(print(again), text);
  check(again);
  ASSERT_EQ(again.nodes.size(), plan.nodes.size());
  EXPECT_EQ(again.nodes[2].bindings[1].buffer, plan.nodes[2].bindings[1].buffer);
  EXPECT_EQ(again.buffers[3].shape, plan.buffers[3].shape);
}

// What fuzzing begins with is a plan.
TEST(StepText, ReadsTheSample) {
  std::ifstream file("stretto/step/testdata/step_text_fuzz/gathered.txt");
  std::string text((std::istreambuf_iterator<char>(file)), {});
  Plan plan = parse(text, "gathered.txt");
  check(plan);
  EXPECT_EQ(plan.nodes.size(), 1u);
  EXPECT_EQ(eval(plan.buffers[3].shape[0], {6, 1}), 4) << "ceil((12 - 1 - 3) / 4) * 2";
  EXPECT_EQ(print(parse(print(plan), "again")), print(plan));
}

// Names may be anything, sizes are any sums.
TEST(StepText, RoundTripsAnySizesAndNames) {
  std::uint64_t seed = test_seed();
  SCOPED_TRACE("STRETTO_TEST_SEED=" + std::to_string(seed));
  std::mt19937_64 random(seed);
  auto below = [&](int n) { return std::uniform_int_distribution<int>(0, n - 1)(random); };
  for (int draw = 0; draw < 200; ++draw) {
    Plan plan{.name = std::string("a \"b\"\\\n\x01\xC3\xA9"), .group_size = 2, .num_ranks = 4};
    for (int e = 0; e < 3; ++e) plan.extents.push_back({"e" + std::to_string(e), below(1000)});
    for (int b = 0; b < 5; ++b) {
      Buffer buffer{.name = "b\t" + std::to_string(b),
                    .dtype = below(2) == 0 ? DType::kBF16 : DType::kI32,
                    .kind = static_cast<BufferKind>(below(5)),
                    .symmetric = below(2) == 0,
                    .across_groups = below(2) == 0};
      for (int d = below(4); d >= 0; --d) {
        Size s{.constant = below(9) - 4, .divisor = 1 + below(3), .factor = 1 + below(3)};
        for (int e = 0; e < 3; ++e) {
          if (int c = below(5) - 2; c != 0) s.terms.push_back({e, c});
        }
        buffer.shape.push_back(s);
      }
      plan.buffers.push_back(buffer);
    }
    Plan again = parse(print(plan), "plan");
    EXPECT_EQ(print(again), print(plan));
    for (std::size_t b = 0; b < plan.buffers.size(); ++b) {
      EXPECT_EQ(again.buffers[b].shape, plan.buffers[b].shape) << print(plan);
      EXPECT_EQ(again.buffers[b].name, plan.buffers[b].name);
    }
  }
}

TEST(StepText, RefusesWithThePlace) {
  const std::string head = "step \"s\" group 1 ranks 1 {\n";
  EXPECT_EQ(refusal("stop"), "plan:1:1: expected 'step', got 'stop'");
  EXPECT_NE(refusal(head).find("plan:2:1: expected extent, constant"), std::string::npos);
  EXPECT_NE(
      refusal(head + "local \"a\" : f32[\"m\"]").find("plan:2:17: expected an extent declared"),
      std::string::npos);
  EXPECT_NE(refusal(head + "local \"a\" : f33[1]").find("expected a dtype"), std::string::npos);
  EXPECT_NE(refusal(head + "local \"a\" : f32[1]\nlocal \"a\" : f32[1]").find("plan:3:7: \"a\" is"),
            std::string::npos);
  EXPECT_NE(refusal(head + "section \"b\" { node \"n\" runs 3 () {} } }").find("a program below 0"),
            std::string::npos);
  EXPECT_NE(refusal(head + "program \"p\" world 1 {").find("plan:2:1: expected the end of this"),
            std::string::npos);
  EXPECT_NE(refusal(head + "program \"p\" what {}").find("plan: program 0:1:13: expected"),
            std::string::npos);
  EXPECT_NE(refusal(head + "} x").find("expected the end of the text"), std::string::npos);
}

// Any prefix of a plan, and any byte changed, is a plan or refused.
TEST(StepText, SurvivesDamage) {
  std::string text = print(chain(2));
  for (std::size_t cut = 0; cut < text.size(); cut += 7) refusal(text.substr(0, cut));
  std::mt19937_64 random(test_seed());
  for (int i = 0; i < 2000; ++i) {
    std::string damaged = text;
    damaged[random() % damaged.size()] = static_cast<char>(random() % 256);
    refusal(damaged);
  }
}

}  // namespace
}  // namespace stretto::step
