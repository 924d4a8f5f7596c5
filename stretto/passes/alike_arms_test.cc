// Which arms are one. If these fail, a role does in both cases what it was to do in one, or a GPU's
// compiler takes twice the time over the same text.
#include "stretto/passes/alike_arms.h"

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <random>

#include "stretto/base/test_seed.h"
#include "stretto/executor/program_runner.h"
#include "stretto/ir/block_ops.h"
#include "stretto/ir/verifier.h"
#include "stretto/lang/program_builder.h"
#include "stretto/passes/pipeline.h"

namespace stretto::alike_arms_test {
namespace {

constexpr std::int64_t kRows = 8, kCols = 8, kTiles = 4;

// What an arm is given: the tile of rows of this turn, and values from outside.
struct Arm {
  ProgramBuilder& p;
  TensorRef a, b, c;
  SignalRef done;
  Index row;
  Value &x, &y;
  Value load() const { return p.load(a.tile({row, 0}, kRows, kCols)); }
  void store(const Value& v) const { p.store(c.tile({row, 0}, kRows, kCols), v); }
};
using Body = std::function<void(const Arm&)>;

// c = what either of two arms stores, or both after them; a and b are inputs.
Program either(const Body& then, const Body& otherwise, const Body& after = {}) {
  ProgramBuilder p("either", 1);
  auto a = p.input("a", DType::kF32, {kRows * kTiles, kCols});
  auto b = p.input("b", DType::kF32, {kRows * kTiles, kCols});
  auto c = p.state("c", DType::kF32, {kRows * kTiles, kCols});
  auto done = p.signal("done", 2);
  p.role("work", Resource::sms(1), p.range(kTiles), [&](const Tile& t) {
    Value x = p.zeros(DType::kF32, kRows, kCols), y = p.full(DType::kF32, kRows, kCols, 1);
    Arm arm{p, a, b, c, done, p.let("row", t.index * kRows), x, y};
    p.when(
        t.index < 2, [&] { then(arm); }, [&] { otherwise(arm); });
    if (after) after(arm);
  });
  return p.finish();
}

std::int64_t num_whens(const Program& program) {
  std::int64_t count = 0;
  for_each_op(program.roles[0].agents[0].body,
              [&](const Op& op) { count += op.code == OpCode::kWhen ? 1 : 0; });
  return count;
}

bool are_one(const Body& then, const Body& otherwise, const Body& after = {}) {
  Program program = either(then, otherwise, after);
  const std::int64_t before = num_whens(program);
  program = merge_alike_arms(std::move(program));
  EXPECT_NO_THROW(verify(program));
  return num_whens(program) < before;
}

// Registers and variables of its own, a loop, and a value from outside that it goes on with.
void sums(const Arm& arm) {
  arm.p.loop(3, [&](const Index& i) {
    Index factor = arm.p.let("factor", i + 1);
    Value some = arm.load() * cast(arm.p.splat(DType::kI32, factor), DType::kF32);
    arm.x = arm.x + some;
  });
  arm.store(arm.x);
}

TEST(AlikeArms, AreOneUpToNamesOfTheirOwn) {
  EXPECT_TRUE(are_one(sums, sums));
  EXPECT_TRUE(are_one(sums, sums, [](const Arm& arm) { arm.store(arm.x + arm.y); }));
  EXPECT_TRUE(are_one([](const Arm& arm) { arm.p.notify(arm.done[1], 0); },
                      [](const Arm& arm) { arm.p.notify(arm.done[1], 0); }));
}

TEST(AlikeArms, LeaveNoRegisterOfTheArmThatIsGone) {
  Program merged = merge_alike_arms(either(sums, sums));
  EXPECT_EQ(merged.roles[0].agents[0].values.size(),
            merge_alike_arms(either(sums, [](const Arm&) {})).roles[0].agents[0].values.size());
}

TEST(AlikeArms, AreWhatIsAroundThoseThatAreOne) {
  auto nested = [](const Arm& arm) {
    arm.p.when(
        arm.row < 24, [&] { sums(arm); }, [&] { sums(arm); });
  };
  Program program = merge_alike_arms(either(nested, sums));
  EXPECT_EQ(num_whens(program), 0);
}

TEST(AlikeArms, DifferInWhatTheySay) {
  auto stores = [](const std::function<Value(const Arm&)>& value) {
    return Body([=](const Arm& arm) { arm.store(value(arm)); });
  };
  auto plus = [&](double n) { return stores([=](const Arm& arm) { return arm.load() + n; }); };
  EXPECT_TRUE(are_one(plus(1), plus(1)));
  EXPECT_FALSE(are_one(plus(1), plus(2)));
  EXPECT_FALSE(are_one(plus(0.0), plus(-0.0)));
  EXPECT_FALSE(are_one(plus(1), stores([](const Arm& arm) { return arm.load() - 1; })));
  EXPECT_FALSE(are_one(plus(1), stores([](const Arm& arm) { return exp(arm.load() + 1); })));
  EXPECT_FALSE(are_one(plus(1), [](const Arm&) {}));
  auto from = [](const TensorRef& tensor, const Arm& arm, const Index& row) {
    arm.store(arm.p.load(tensor.tile({row, 0}, kRows, kCols)));
  };
  Body from_a = [&](const Arm& arm) { from(arm.a, arm, arm.row); };
  EXPECT_FALSE(are_one(from_a, [&](const Arm& arm) { from(arm.b, arm, arm.row); }));
  EXPECT_FALSE(are_one(from_a, [&](const Arm& arm) { from(arm.a, arm, arm.row + 1); }));
  EXPECT_FALSE(are_one(from_a, [](const Arm& arm) {
    arm.store(arm.p.load(arm.a.tile({arm.row, 0}, kRows, kCols).until_row(arm.row + 1)));
  }));
}

TEST(AlikeArms, DifferInVariables) {
  auto of_let = [](std::int64_t plus) {
    return Body([=](const Arm& arm) {
      Index at = arm.p.let("at", arm.row + plus);
      arm.p.store(arm.c.tile({at, 0}, kRows, kCols), arm.x);
    });
  };
  EXPECT_TRUE(are_one(of_let(1), of_let(1)));
  EXPECT_FALSE(are_one(of_let(0), of_let(1)));
  auto of_loop = [](std::int64_t end) {
    return Body([=](const Arm& arm) {
      arm.p.loop(end, [&](const Index& i) {
        arm.p.store(arm.c.tile({arm.row + i, 0}, kRows, kCols), arm.x);
      });
    });
  };
  EXPECT_FALSE(are_one(of_loop(2), of_loop(3)));
  auto signals = [](int channel) {
    return Body([=](const Arm& arm) { arm.p.notify(arm.done[channel], 0); });
  };
  EXPECT_FALSE(are_one(signals(0), signals(1)));
  // Of two variables the other one.
  auto pair = [](bool second) {
    return Body([=](const Arm& arm) {
      Index one = arm.p.let("one", arm.row), two = arm.p.let("two", arm.row);
      arm.p.store(arm.c.tile({second ? two : one, 0}, kRows, kCols), arm.x);
    });
  };
  EXPECT_FALSE(are_one(pair(false), pair(true)));
}

TEST(AlikeArms, DifferInRegisters) {
  auto difference = [](bool turned, bool twice) {
    return Body([=](const Arm& arm) {
      Value one = arm.load(), two = arm.load();
      arm.store(twice ? one + one : turned ? two - one : one - two);
    });
  };
  EXPECT_TRUE(are_one(difference(true, false), difference(true, false)));
  EXPECT_FALSE(are_one(difference(false, false), difference(true, false)));
  EXPECT_FALSE(are_one(difference(false, true), [](const Arm& arm) {
    Value one = arm.load(), two = arm.load();
    arm.store(one + two);
  }));
  // What they leave to others: each another of two values from outside.
  Body both = [](const Arm& arm) { arm.store(arm.x + arm.y); };
  EXPECT_FALSE(are_one([](const Arm& arm) { arm.x = arm.load(); },
                       [](const Arm& arm) { arm.y = arm.load(); }, both));
  EXPECT_FALSE(
      are_one([](const Arm& arm) { arm.store(arm.x); }, [](const Arm& arm) { arm.store(arm.y); }));
}

// All the way, with what a plain loop makes of the same numbers.
TEST(AlikeArms, ComputeWhatBothDid) {
  SCOPED_TRACE(testing::Message() << "STRETTO_TEST_SEED=" << test_seed());
  std::mt19937_64 random(test_seed());
  Doubles a(kRows * kTiles * kCols), out;
  for (double& v : a) v = static_cast<double>(random() % 9) - 4;
  auto program = std::make_shared<const Program>(
      run_pipeline(either(sums, sums, [](const Arm& arm) { arm.store(arm.x + arm.y); })));
  EXPECT_EQ(num_whens(*program), 0);
  World world({.size = 1});
  run_program(world, program, [&](Rank&, Instance& instance, RankArguments& arguments) {
    arguments.set("a", a);
    arguments.set("b", Doubles(a.size(), 0));
    instance.launch(arguments.args, arguments.extents);
    out = arguments.get("c");
  });
  Doubles expected;
  for (double v : a) expected.push_back(6 * v + 1);
  EXPECT_EQ(out, expected);
}

}  // namespace
}  // namespace stretto::alike_arms_test
