// A role beside another as CUDA text. A user who loses this has sums that take SMs from the
// products whose blocks they were to share, or threads of both that wait at the same barrier.
#include <gtest/gtest.h>

#include "stretto/codegen/kernel_testing.h"
#include "stretto/lang/program_builder.h"

namespace stretto::beside_text_test {
namespace {

// Products of tiles, and each row's total of them; `gathered`: threads load the left factor.
Program totals(bool gathered) {
  ProgramBuilder p("totals", 1);
  auto a = p.input("a", DType::kBF16, {256, 1024});
  auto b = p.input("b", DType::kBF16, {512, 1024});
  auto rows = p.table("rows", {256, 1}, {ContractKind::kRange, 0, 256});
  auto c = p.output("c", DType::kBF16, {256, 512});
  auto out = p.output("out", DType::kF32, {256, 1});
  auto stored = p.signal("stored", 2);
  int gemm = p.role("gemm", Resource::sms(4).pipelined(4), p.grid(c, 128, 128), [&](const Tile& t) {
    Value acc = p.zeros(DType::kF32, 128, 128);
    auto multiply = [&](const Index& i, const Value& x) {
      acc = dot(acc, x, p.load(b.tile({t.col, i * 64}, 128, 64)).T());
    };
    if (gathered) {
      Value picked = p.load(rows.tile({t.row, 0}, 128, 1));
      p.loop(16, [&](const Index& i) {
        multiply(i, p.load_rows(a.tile({0, i * 64}, 128, 64), picked));
      });
    } else {
      p.loop(16, [&](const Index& i) { multiply(i, p.load(a.tile({t.row, i * 64}, 128, 64))); });
    }
    p.store(c.tile({t.row, t.col}, 128, 128), cast(acc, DType::kBF16));
    p.notify(stored[t.m], p.rank());
  });
  p.role("sum", Resource::sms(4).beside_role(gemm), p.grid(out, 8, 1), [&](const Tile& t) {
    p.wait(stored[t.row / 128], 4);
    p.store(out.tile({t.row, 0}, 8, 1),
            row_sum(cast(p.load(c.tile({t.row, 0}, 8, 512)), DType::kF32)));
  });
  return p.finish();
}

TEST(BesideText, WarpsThatLoadNothingWorkBesideTheProducer) {
  GeneratedKernel kernel = generate(totals(false));
  EXPECT_EQ(kernel.launch.grid, 4);
  EXPECT_EQ(kernel.launch.block, 384);
  expect_lines(kernel.source,
               {"if (threadIdx.x >= 256 && threadIdx.x < 384) {  // producer",
                "register_budget_lower<112>();", "threadIdx.x / 32 == 8 && elect_one()",
                "if (threadIdx.x >= 288 && threadIdx.x < 384) {  // role 'sum'",
                "const Team team{threadIdx.x - 288, 3};", "wait_acquire_", "// consumer",
                "register_budget_raise<192>();", "const Team team{threadIdx.x - 0, 2};"});
  expect_clean_build(kernel);
}

TEST(BesideText, WhereAllLoadThereIsAWarpgroupMore) {
  GeneratedKernel kernel = generate(totals(true));
  EXPECT_EQ(kernel.launch.block, 512);
  expect_lines(kernel.source,
               {"// producer", "register_budget_lower<56>();", "// consumer",
                "register_budget_raise<176>();",
                "} else if (threadIdx.x >= 384 && threadIdx.x < 512) {  // role 'sum'",
                "register_budget_lower<104>();", "const Team team{threadIdx.x - 384, 3};"});
  expect_clean_build(kernel);
}

}  // namespace
}  // namespace stretto::beside_text_test
