// What is multiplied by columns after columns may be made by an agent of its own. If these fail, a
// product that normalises what it multiplies gives other numbers than both steps one by one, or
// waits for slots that nobody fills.
#include <gtest/gtest.h>

#include <random>

#include "stretto/base/test_seed.h"
#include "stretto/executor/program_runner.h"
#include "stretto/ir/parser.h"
#include "stretto/ir/printer.h"
#include "stretto/lang/program_builder.h"
#include "stretto/passes/pipeline.h"
#include "stretto/proof/prove.h"

namespace stretto {
namespace {

constexpr std::int64_t kM = 3, kN = 11, kK = 40, kCols = 4, kStep = 8;

struct Options {
  int factor_slots = 0;
  bool kept = false;     // what is made is stored, too
  bool partial = false;  // the last columns are left out
  bool moved = false;    // the loop begins with the second step's columns
};

// c = (a * w + row_sum(a)) * b^T over all or some of k.
Program product(const Options& o) {
  ProgramBuilder p("product", 1);
  auto a = p.input("a", DType::kF32, {kM, kK});
  auto w = p.input("w", DType::kF32, {1, kK});
  auto b = p.input("b", DType::kF32, {kN, kK});
  auto c = p.output("c", DType::kF32, {kM, kN});
  TensorRef made;
  if (o.kept) made = p.output("made", DType::kF32, {ceil_div(kN, kCols), kM, kK});
  Resource sms = Resource::sms(2).pipelined(3).making_factors(o.factor_slots);
  p.role("gemm", sms, p.grid(kM, kN, kM, kCols), [&](const Tile& t) {
    Value x = p.load(a.tile({0, 0}, kM, kK));
    Value v = x * p.load(w.tile({0, 0}, 1, kK)) + row_sum(x);
    if (o.kept) p.store(made.tile({t.n, 0, 0}, kM, kK), v);
    Value acc = p.zeros(DType::kF32, kM, kCols);
    Index steps = kK / kStep - (o.partial ? 1 : 0);
    p.loop(o.moved ? 1 : 0, steps, [&](const Index& i) {
      acc = dot(acc, columns(v, i * kStep, kStep),
                p.load(b.tile({t.col, i * kStep}, kCols, kStep)).T());
    });
    p.store(c.tile({0, t.col}, kM, kCols), acc);
  });
  return p.finish();
}

Doubles expected(const Doubles& a, const Doubles& w, const Doubles& b, const Options& o) {
  auto at = [](const Doubles& x, std::int64_t i) { return x[static_cast<std::size_t>(i)]; };
  Doubles c;
  for (std::int64_t i = 0; i < kM; ++i) {
    double row = 0;
    for (std::int64_t k = 0; k < kK; ++k) row += at(a, i * kK + k);
    for (std::int64_t j = 0; j < kN; ++j) {
      double sum = 0;
      for (std::int64_t k = o.moved ? kStep : 0; k < kK - (o.partial ? kStep : 0); ++k) {
        sum += (at(a, i * kK + k) * at(w, k) + row) * at(b, j * kK + k);
      }
      c.push_back(sum);
    }
  }
  return c;
}

TEST(FactorMaker, ComputesWhatOneAgentDoes) {
  std::mt19937_64 random(test_seed());
  SCOPED_TRACE("STRETTO_SEED=" + std::to_string(test_seed()));
  auto numbers = [&](std::int64_t n) {  // whole, so that sums are exact in any order
    Doubles v(static_cast<std::size_t>(n));
    for (double& x : v) x = static_cast<double>(random() % 9) - 4;
    return v;
  };
  struct Case {
    Options options;
    std::size_t agents;
  };
  for (const Case& c :
       {Case{{.factor_slots = 0}, 2}, Case{{.factor_slots = 2}, 3}, Case{{.factor_slots = 3}, 3},
        // Those that the pass must leave as they are.
        Case{{.factor_slots = 3, .kept = true}, 2}, Case{{.factor_slots = 3, .partial = true}, 2},
        Case{{.factor_slots = 3, .moved = true}, 2}}) {
    Program recorded = product(c.options);
    EXPECT_EQ(print(parse(print(recorded), "text")), print(recorded));
    auto program = std::make_shared<const Program>(run_pipeline(std::move(recorded)));
    ASSERT_EQ(program->roles[0].agents.size(), c.agents) << print(*program);
    EXPECT_EQ(print(parse(print(*program), "text")), print(*program));
    ProofResult proof = prove(*program);
    EXPECT_TRUE(proof.proved) << proof.report;
    Doubles a = numbers(kM * kK), w = numbers(kK), b = numbers(kN * kK);
    EXPECT_EQ(run_once(program, {{"a", a}, {"w", w}, {"b", b}}).at("c"),
              expected(a, w, b, c.options))
        << print(*program);
  }
}

}  // namespace
}  // namespace stretto
