// Outputs that some ranks have only. Without these a launch could write through an address that
// nobody gave it, or leave undone what its caller reads.
#include <gtest/gtest.h>

#include <string>

#include "stretto/ir/parser.h"
#include "stretto/ir/printer.h"
#include "stretto/lang/program_builder.h"
#include "stretto/passes/pipeline.h"
#include "stretto/proof/prove.h"

namespace stretto::given_outputs_test {
namespace {

constexpr int kRoot = 1, kWorld = 3;

// The root gets the sum of all inputs; `writes` says who writes it, and `rows` how much of it.
Program sum_at_root(const Index& writes, std::int64_t rows, const Index& given_on) {
  ProgramBuilder p("sum_at_root", kWorld);
  Index m = p.extent("m", 12);
  auto in = p.input("in", DType::kF32, {m, 8}, Space::kSymmetric);
  auto out = p.output("out", DType::kF32, {m, 8}, {.given_on = given_on});
  auto ready = p.signal("ready"), done = p.signal("done");
  p.on_start([&] { p.notify_all(ready); });
  p.role("sum", Resource::sms(2), p.range(3), [&](const Tile& t) {
    p.when(writes, [&] {
      p.wait_all(ready);
      auto cut = [&](const TensorRef& x) { return x.tile({t.index * 4, 0}, rows, 8); };
      Value sum = p.zeros(DType::kF32, rows, 8);
      for (int r = 0; r < kWorld; ++r) sum = sum + p.load(cut(in).on(r));
      p.store(cut(out), sum);
    });
    p.notify_all(done);
  });
  p.on_end([&] { p.loop(kWorld, [&](const Index& i) { p.wait(done[i], 3); }); });
  return p.finish();
}

const Index kRank = Expr::var(0);

TEST(GivenOutputs, TheRootAloneWrites) {
  Program program = sum_at_root(kRank == kRoot, 4, kRank == kRoot);
  EXPECT_TRUE(is_given(program, program.find_tensor("out"), kRoot));
  EXPECT_FALSE(is_given(program, program.find_tensor("out"), 0));
  ProofResult r = prove(run_pipeline(program));
  EXPECT_TRUE(r.proved()) << r.report;
}

TEST(GivenOutputs, SeveralRanksMayHaveOne) {
  Index all_but_first = kRank > 0;
  ProofResult r = prove(run_pipeline(sum_at_root(all_but_first, 4, all_but_first)));
  EXPECT_TRUE(r.proved()) << r.report;
}

void expect_rejected(const Program& program, const std::string& words) {
  ProofResult r = prove(run_pipeline(program));
  ASSERT_TRUE(r.rejected()) << r.report;
  EXPECT_EQ(r.findings[0].kind, FindingKind::kOutput) << r.report;
  EXPECT_NE(r.report.find(words), std::string::npos) << r.report;
}

TEST(GivenOutputs, OthersMayNotWrite) {
  expect_rejected(sum_at_root(1, 4, kRank == kRoot), "where the output is not given");
  expect_rejected(sum_at_root(kRank == 0, 4, kRank == kRoot), "output");
}

TEST(GivenOutputs, TheRootHasToWriteAllOfIt) {
  expect_rejected(sum_at_root(kRank == kRoot, 3, kRank == kRoot), "is never written");
  expect_rejected(sum_at_root(kRank == kRoot, 4, kRank != 2), "is never written");
}

TEST(GivenOutputs, TextSaysWhere) {
  Program program = sum_at_root(kRank == kRoot, 4, kRank == kRoot);
  std::string text = print(program);
  EXPECT_NE(text.find("output @out : f32[%m, 8] given_on %rank == 1"), std::string::npos) << text;
  EXPECT_EQ(print(parse(text, "text")), text);
}

}  // namespace
}  // namespace stretto::given_outputs_test
