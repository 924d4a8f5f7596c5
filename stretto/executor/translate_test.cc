// What makes the interpreter cheap must not change what it computes: compiled index expressions
// against ir/expr.h, and the fusions exactly where they are allowed.
#include "stretto/executor/translate.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "stretto/base/errors.h"
#include "stretto/base/test_seed.h"
#include "stretto/executor/program_runner.h"
#include "stretto/lang/program_builder.h"

namespace stretto {
namespace {

class SumTable final : public TableReader {
 public:
  std::int64_t read(int tensor_idx, std::span<const std::int64_t> index) override {
    std::int64_t sum = tensor_idx * 100;
    for (std::int64_t i : index) sum = sum * 3 + i;
    return sum;
  }
};

Expr random_expr(std::mt19937_64& random, int depth) {
  auto sub = [&] { return random_expr(random, depth - 1); };
  if (depth == 0 || random() % 6 == 0) {
    if (random() % 3 == 0) return static_cast<std::int64_t>(random() % 21) - 10;
    return Expr::var(static_cast<int>(random() % 5));
  }
  if (random() % 12 == 0) return Expr::table(2, {sub(), sub()});
  auto op = static_cast<ExprOp>(static_cast<int>(ExprOp::kAdd) + random() % 12);
  if (op == ExprOp::kNot) return !sub();
  if (op == ExprOp::kMul) return sub() * static_cast<int>(random() % 9);  // no overflow
  if (op == ExprOp::kSelect) return select(sub(), sub(), sub());
  if (op == ExprOp::kFloorDiv || op == ExprOp::kMod) {
    // A divisor that may be zero stands behind a guard, which must keep it from being evaluated.
    Expr divisor = sub(), quotient = Expr::make(op, {sub(), divisor});
    return select(divisor != 0, quotient, 7);
  }
  return Expr::make(op, {sub(), sub()});
}

TEST(ExprCode, EvaluatesLikeTheExpression) {
  std::uint64_t seed = test_seed();
  SCOPED_TRACE("STRETTO_TEST_SEED=" + std::to_string(seed));
  std::mt19937_64 random(seed);
  SumTable tables;
  for (int i = 0; i < 3000; ++i) {
    Expr e = random_expr(random, 1 + static_cast<int>(random() % 7));
    std::vector<std::int64_t> vars(5);
    for (auto& v : vars) v = static_cast<std::int64_t>(random() % 41) - 20;
    std::vector<Expr> known = {Expr(vars[0])};
    ExprCode code(e, known);
    std::int64_t want = eval(e, vars, &tables);
    vars[0] = 1'000'000;  // folded in
    ASSERT_EQ(code.eval(vars, &tables), want);
  }
}

TEST(ExprCode, ExpressionsTooDeepForTheStackStillWork) {
  Expr e = Expr::var(1);
  for (int i = 0; i < 300; ++i) e = min(Expr(1000), Expr::var(1) - max(e, Expr(-5)));
  std::vector<std::int64_t> vars = {0, 17};
  EXPECT_EQ(ExprCode(e, {}).eval(vars), eval(e, vars));
}

TEST(ExprCode, ConstantStepsAreRecognised) {
  Expr i = Expr::var(1), j = Expr::var(2);
  std::int64_t step = 0;
  EXPECT_TRUE(constant_step(i * 8 + j % 3, 1, &step));
  EXPECT_EQ(step, 8);
  EXPECT_TRUE(constant_step((j - i) * 4 + i, 1, &step));
  EXPECT_EQ(step, -3);
  EXPECT_FALSE(constant_step(i % 4, 1, &step));
  EXPECT_FALSE(constant_step(i * j, 1, &step));
}

int count(const AgentCode& code, OpCode op) {
  return static_cast<int>(std::count_if(code.insts.begin(), code.insts.end(), [&](const Inst& i) {
    return i.flow == Flow::kOp && i.code == op;
  }));
}

// The main loop of a GEMM with `inside` recorded in it.
AgentCode gemm_code(const std::function<void(ProgramBuilder&, const TensorRef&)>& inside,
                    std::int64_t step = 16) {
  ProgramBuilder p("gemm", 1);
  auto a = p.input("a", DType::kBF16, {64, 64});
  auto b = p.input("b", DType::kBF16, {64, 64});
  auto s = p.state("s", DType::kBF16, {64, 64});
  auto y = p.output("y", DType::kBF16, {64, 64});
  p.role("r", Resource::host(), p.grid(y, 32, 32), [&](const Tile& t) {
    Value acc = p.zeros(DType::kF32, 32, 32);
    p.loop(4, [&](const Index& i) {
      Value left = p.load(a.tile({t.row, i * step}, 32, 16));
      if (inside) inside(p, s);
      acc = dot(acc, left, p.load(b.tile({t.col, i * step}, 32, 16)).T());
    });
    p.store(y.tile({t.row, t.col}, 32, 32), cast(acc, DType::kBF16));
  });
  auto program = at_schedule_level(p.finish());
  static std::vector<ProgramCode> kept;  // the code points into its program
  kept.push_back(translate(program, 0));
  return kept.back().roles[0].agents[0];
}

TEST(Fusion, AGemmTileIsOneDotAndOneStore) {
  AgentCode code = gemm_code({});
  EXPECT_EQ(count(code, OpCode::kLoad) + count(code, OpCode::kTranspose), 0);
  EXPECT_EQ(count(code, OpCode::kFill) + count(code, OpCode::kCast), 0);
  EXPECT_EQ(count(code, OpCode::kDot), 1);
  ASSERT_EQ(code.dots.size(), 1u);
  EXPECT_TRUE(code.dots[0].folded);
  EXPECT_TRUE(code.dots[0].zero_acc);
}

TEST(Fusion, StepsThatAreNotAdjacentKeepTheLoop) {
  AgentCode code = gemm_code({}, 8);
  EXPECT_FALSE(code.dots[0].folded);
  EXPECT_EQ(count(code, OpCode::kFill), 1);  // the dot of the second turn adds to the first
}

TEST(Fusion, AStoreBetweenLoadAndDotKeepsTheLoad) {
  AgentCode code = gemm_code([](ProgramBuilder& p, const TensorRef& s) {
    p.store(s.tile({0, 0}, 4, 4), p.zeros(DType::kBF16, 4, 4));
  });
  EXPECT_EQ(count(code, OpCode::kLoad), 1);
  EXPECT_FALSE(code.dots[0].folded);
}

TEST(Translate, TileLevelProgramsAreRefused) {
  Program program;
  program.vars.push_back({"rank", VarKind::kRank});
  program.level = Level::kTile;
  EXPECT_THROW(translate(std::make_shared<const Program>(program), 0), UserError);
}

}  // namespace
}  // namespace stretto
