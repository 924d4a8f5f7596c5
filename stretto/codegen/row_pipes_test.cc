// Rows that a role without products loads ahead, as CUDA text. A user who loses this waits for
// memory once per row, or for ever: a warpgroup whose threads belong to two agents cannot give the
// registers of one to the other.
#include <gtest/gtest.h>

#include "stretto/codegen/kernel_testing.h"
#include "stretto/lang/program_builder.h"

namespace stretto::row_pipes_test {
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

// TMA ends a kernel with an illegal instruction at a column that is no multiple of 16 bytes.
TEST(RowPipes, ColumnsOffTheGranuleAreFilledByThreads) {
  auto by_tma = [](const std::function<Index(const Tile&, const Index&)>& column) {
    ProgramBuilder p("sample", 1);
    auto a = p.input("a", DType::kBF16, {128, 1024});
    auto c = p.output("c", DType::kBF16, {128, 128});
    Resource sms = Resource::sms(2).pipelined(2);
    p.role("gemm", sms, p.grid(c, 64, 64), [&](const Tile& t) {
      Value acc = p.zeros(DType::kF32, 64, 64);
      p.loop(3, [&](const Index& i) {
        Value part = p.load(a.tile({t.row, column(t, i)}, 64, 64));
        acc = dot(acc, part, part.T());
      });
      p.store(c.tile({t.row, t.col}, 64, 64), cast(acc, DType::kBF16));
    });
    GeneratedKernel kernel = generate(p.finish());
    expect_clean_build(kernel);
    bool loaded = kernel.source.find("  tma_load_3d(smem") != std::string::npos;
    bool told = kernel.source.find("by threads: columns that are not multiples of 16 bytes") !=
                std::string::npos;
    EXPECT_NE(loaded, told) << kernel.source;
    return loaded;
  };
  EXPECT_TRUE(by_tma([](const Tile&, const Index& i) { return i * 8 + 16; }));
  EXPECT_TRUE(by_tma([](const Tile& t, const Index& i) { return t.col + i * 64; }));
  EXPECT_FALSE(by_tma([](const Tile&, const Index& i) { return i * 64 + 9; }));
  EXPECT_FALSE(by_tma([](const Tile&, const Index& i) { return i * 4; }));
  EXPECT_FALSE(by_tma([](const Tile&, const Index& i) { return i; }));
}

}  // namespace
}  // namespace stretto::row_pipes_test
