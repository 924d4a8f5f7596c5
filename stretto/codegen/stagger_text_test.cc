// Waits and notifies of warpgroups that are apart by part of a tile, as CUDA text. A user who loses
// this has warpgroups that wait for each other at every tile, or a notify that comes before what
// one of them stored.
#include <gtest/gtest.h>

#include "stretto/codegen/kernel_testing.h"
#include "stretto/lang/program_builder.h"

namespace stretto::stagger_text_test {
namespace {

// Tiles go to the next rank, and what came from the one before is added; the rows of `a` may end
// before the tiles do.
Program exchanged(int stagger, bool row_limit = false) {
  ProgramBuilder p("exchanged", 2);
  auto a = p.input("a", DType::kBF16, {256, 1024});
  auto b = p.input("b", DType::kBF16, {512, 1024});
  auto c = p.output("c", DType::kBF16, {256, 512});
  auto slots =
      p.buffer("slots", DType::kBF16, {256, 512}, {.space = Space::kSymmetric, .num_slots = 2});
  auto sent = p.signal("sent", 4);
  p.role("gemm", Resource::sms(4).pipelined(4).staggered(stagger), p.grid(c, 128, 256),
         [&](const Tile& t) {
           Value acc = p.zeros(DType::kF32, 128, 256);
           p.loop(16, [&](const Index& i) {
             Slice rows = a.tile({t.row, i * 64}, 128, 64);
             if (row_limit) rows = rows.until_row(253);
             acc = dot(acc, p.load(rows), p.load(b.tile({t.col, i * 64}, 256, 64)).T());
           });
           Index channel = t.m * 2 + t.n, next = 1 - p.rank();
           p.store(slots.tile({t.row, t.col}, 128, 256).on(next), cast(acc, DType::kBF16));
           p.notify(sent[channel], next);
           p.wait(sent[channel], 1);
           Value theirs = p.load(slots.tile({t.row, t.col}, 128, 256));
           p.store(c.tile({t.row, t.col}, 128, 256),
                   cast(acc + cast(theirs, DType::kF32), DType::kBF16));
         });
  return p.finish();
}

TEST(StaggerText, TheLastWarpgroupNotifiesAndEachWaitsForItself) {
  GeneratedKernel kernel = generate(exchanged(2));
  expect_lines(kernel.source,
               {"*reinterpret_cast<uint4*>(smem + ", "__syncthreads();", "// consumer",
                "Meeting<2> meeting{", "pass_turn<2>(team);", "store_tma<bf16, 256",
                "if (team.tid % 128 == 0) tma_store_wait<0>();", "if (meeting.come(team)) {",
                "add_release_sys(", "}", "if (team.tid % 128 == 0) {", "wait_acquire_sys(", "}",
                "meet_in_warpgroup();", "fence_proxy_async_global();", "load_into<"});
  std::size_t loop = kernel.source.find("take_turn(team);");
  EXPECT_EQ(kernel.source.find("named_barrier_sync(team.barrier", loop), std::string::npos)
      << kernel.source;
  expect_clean_build(kernel);
}

// In the loop the other warpgroup may be waiting for its turn, and would never come to a barrier.
TEST(StaggerText, EachClearsTheRowsThatDoNotExistForItself) {
  GeneratedKernel kernel = generate(exchanged(2, true));
  expect_lines(kernel.source,
               {"take_turn(team);", "clear_rows(", "Team{team.tid % 128, 0}, 128);",
                "fence_proxy_async_shared();", "meet_in_warpgroup();", "dot_async<"});
  std::size_t loop = kernel.source.find("take_turn(team);");
  EXPECT_EQ(kernel.source.find("named_barrier_sync(team.barrier", loop), std::string::npos)
      << kernel.source;
  expect_clean_build(kernel);
}

// Two products of a loop, the second of what the first one makes.
Program chained(std::int64_t keys) {
  ProgramBuilder p("chained", 1);
  auto q = p.input("q", DType::kBF16, {128, 64});
  auto k = p.input("k", DType::kBF16, {16 * keys, 64});
  auto v = p.input("v", DType::kBF16, {16 * keys, 64});
  auto out = p.output("out", DType::kBF16, {128, 64});
  p.role("chain", Resource::sms(1).pipelined(2), p.grid(out, 128, 64), [&](const Tile&) {
    Value rows = p.load(q.tile({0, 0}, 128, 64));
    Value acc = p.zeros(DType::kF32, 128, 64);
    p.loop(16, [&](const Index& i) {
      Value scores = p.zeros(DType::kF32, 128, keys);
      scores = dot(scores, rows, p.load(k.tile({i * keys, 0}, keys, 64)).T());
      acc = dot(acc, cast(exp2(scores), DType::kBF16), p.load(v.tile({i * keys, 0}, keys, 64)));
    });
    p.store(out.tile({0, 0}, 128, 64), cast(acc, DType::kBF16));
  });
  return p.finish();
}

// Products by threads put a factor into shared memory between two barriers of all warpgroups, of
// which one would wait for its turn (paged attention with pages of four did not end).
TEST(StaggerText, ProductsThatMeetAtBarriersHaveNoTurns) {
  EXPECT_NE(generate(chained(64)).source.find("take_turn(team);"), std::string::npos);
  GeneratedKernel few = generate(chained(4));
  EXPECT_NE(few.source.find("dot_simt<"), std::string::npos) << few.source;
  EXPECT_EQ(few.source.find("take_turn(team);"), std::string::npos) << few.source;
  expect_clean_build(few);
}

TEST(StaggerText, WithoutAStaggerTheyMeetAtABarrier) {
  GeneratedKernel kernel = generate(exchanged(0));
  EXPECT_EQ(kernel.source.find("Meeting<"), std::string::npos);
  EXPECT_NE(kernel.source.find("named_barrier_sync(team.barrier, 256);"), std::string::npos);
}

}  // namespace
}  // namespace stretto::stagger_text_test
