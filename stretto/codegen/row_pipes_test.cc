// Rows that a role without products loads ahead, as CUDA text. A user who loses this waits for
// memory once per row, or for ever: a warpgroup whose threads belong to two agents cannot give the
// registers of one to the other.
#include <gtest/gtest.h>

#include "stretto/codegen/kernel_testing.h"
#include "stretto/lang/program_builder.h"

namespace stretto {
namespace {

// For each of 64 tokens the sum of the rows of y that a table picks (-1: none).
Program sums(int threads) {
  constexpr std::int64_t kCols = 7168, kPicks = 2;
  ProgramBuilder p("sums", 1);
  auto y = p.input("y", DType::kBF16, {4096, kCols});
  auto which = p.table("which", {64, kPicks}, {ContractKind::kRange, -1, 4096});
  auto out = p.output("out", DType::kF32, {64, kCols});
  p.role("sum", Resource::sms(4).pipelined(6), p.range(16), [&](const Tile& t) {
    p.loop(4, [&](const Index& i) {
      Index token = p.let("token", t.index * 4 + i);
      Value sum = p.zeros(DType::kF32, 1, kCols);
      for (std::int64_t j = 0; j < kPicks; ++j) {
        Index row = p.read(which, {token, j});
        p.when(row >= 0, [&] {
          sum = sum + cast(p.load(y.tile({max(row, 0), 0}, 1, kCols)), DType::kF32);
        });
      }
      p.store(out.tile({token, 0}, 1, kCols), sum);
    });
  });
  Program program = p.finish();
  program.roles[0].agents[0].num_threads = threads;
  return program;
}

TEST(RowPipes, AWarpgroupFillsSlotsForTheOthers) {
  GeneratedKernel kernel = generate(sums(896));
  EXPECT_EQ(kernel.launch.block, 1024);
  expect_lines(kernel.source, {"threadIdx.x >= 896 && threadIdx.x < 1024) {  // producer",
                               "register_budget_lower<40>();", "fill_slot<8, true, 128>",
                               "mbarrier_arrive_after_copies", "threadIdx.x < 896) {  // consumer",
                               "register_budget_raise<64>();", "load_smem"});
  expect_clean_build(kernel);
}

TEST(RowPipes, WarpgroupsOfTwoAgentsKeepTheRegistersOfTheLaunch) {
  GeneratedKernel kernel = generate(sums(448));
  expect_lines(kernel.source, {"threadIdx.x >= 448 && threadIdx.x < 576) {  // producer",
                               "fill_slot<8, true, 128>", "threadIdx.x < 448) {  // consumer"});
  EXPECT_EQ(kernel.source.find("register_budget"), std::string::npos) << kernel.source;
  expect_clean_build(kernel);
}

}  // namespace
}  // namespace stretto
