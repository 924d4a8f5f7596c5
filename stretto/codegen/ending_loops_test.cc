// Loops that end with their condition. If these fail, a kernel goes on through thousands of steps
// without work, or leaves out some that have work behind others that have none.
#include "stretto/codegen/ending_loops.h"

#include <gtest/gtest.h>

#include <functional>

#include "stretto/codegen/kernel_testing.h"
#include "stretto/lang/program_builder.h"

namespace stretto::ending_loops_test {
namespace {

struct Sample {
  // Of the loop's variable and of an entry of a table, read outside of the loop.
  std::function<Index(const Index& i, const Index& entry)> condition;
  bool works_outside = false;  // the body does something besides
};

// Whether generated code leaves the loop.
bool leaves(const Sample& sample) {
  ProgramBuilder p("sample", 1);
  auto table = p.table("table", {2}, {ContractKind::kRange, 0, 100});
  auto y = p.output("y", DType::kF32, {64, 64});
  auto z = p.output("z", DType::kF32, {64, 64});
  p.role("work", Resource::sms(1), p.range(1), [&](const Tile&) {
    Index entry = p.read(table, {0});
    p.loop(64, [&](const Index& i) {
      Index named = p.let("named", 3 * i + 2);
      auto store = [&](const TensorRef& to) {
        p.store(to.tile({i, 0}, 1, 64), p.zeros(DType::kF32, 1, 64));
      };
      if (sample.works_outside) store(z);
      p.when(sample.condition(named, entry), [&] { store(y); });
    });
  });
  std::string text = generate(p.finish()).source;
  return text.find(")) break;") != std::string::npos;
}

TEST(EndingLoops, EndWhereTheirConditionCannotHoldAgain) {
  EXPECT_TRUE(leaves({[](const Index& i, const Index& e) { return i < e; }}));
  EXPECT_TRUE(leaves({[](const Index& i, const Index& e) { return (i * 4 + e) * 128 <= e; }}));
  EXPECT_TRUE(leaves({[](const Index& i, const Index& e) { return e < 50 - i / 2; }}));
  EXPECT_TRUE(leaves({[](const Index& i, const Index& e) { return max(i, e) - e < e; }}));
}

TEST(EndingLoops, GoOnWhereItMayHoldLater) {
  EXPECT_FALSE(leaves({[](const Index& i, const Index& e) { return e < i; }}));
  EXPECT_FALSE(leaves({[](const Index& i, const Index& e) { return 50 - i < e; }}));
  EXPECT_FALSE(leaves({[](const Index& i, const Index& e) { return i % 7 < e; }}));
  EXPECT_FALSE(leaves({[](const Index& i, const Index& e) { return i * e < 50; }}));
  EXPECT_FALSE(leaves({[](const Index& i, const Index& e) { return i < e + i * 2; }}));
  EXPECT_FALSE(leaves({[](const Index& i, const Index& e) { return i == e; }}));
  EXPECT_FALSE(leaves({[](const Index&, const Index& e) { return e < 50; }}));  // nothing changes
}

TEST(EndingLoops, GoOnWhereThereIsOtherWork) {
  EXPECT_FALSE(leaves({[](const Index& i, const Index& e) { return i < e; }, true}));
}

// What a table says may change where it is read anew in each step.
TEST(EndingLoops, GoOnWhereATableDecidesEachStep) {
  ProgramBuilder p("sample", 1);
  auto table = p.table("table", {64}, {ContractKind::kRange, 0, 100});
  auto y = p.output("y", DType::kF32, {64, 64});
  p.role("work", Resource::sms(1), p.range(1), [&](const Tile&) {
    p.loop(64, [&](const Index& i) {
      Index entry = p.read(table, {i});
      p.when(i < entry, [&] { p.store(y.tile({i, 0}, 1, 64), p.zeros(DType::kF32, 1, 64)); });
    });
  });
  EXPECT_EQ(generate(p.finish()).source.find(")) break;"), std::string::npos);
}

}  // namespace
}  // namespace stretto::ending_loops_test
