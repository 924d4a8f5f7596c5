// Slots of one ring that threads and TMA fill in turn, as CUDA text. A user who loses this has
// threads copy what TMA could load, or agents that wait for ever for a phase that went by.
#include <gtest/gtest.h>

#include "stretto/base/errors.h"
#include "stretto/codegen/kernel_testing.h"
#include "stretto/lang/program_builder.h"

namespace stretto::ring_turns_test {
namespace {

struct Sample {
  bool limit = false;  // of the rows that lie one after the other
  int cluster = 1;
};

// c = a[rows] b' + d b': rows that a table picks, then those that lie one after the other.
Program product(const Sample& s) {
  constexpr std::int64_t kTile = 128, kCols = 192, kStep = 64, kSize = 1024;
  ProgramBuilder p("product", 1);
  auto a = p.input("a", DType::kBF16, {kSize, kSize}), d = p.input("d", DType::kBF16, {512, kSize});
  auto b = p.input("b", DType::kBF16, {384, kSize});
  auto rows = p.input("rows", DType::kI32, {512, 1});
  auto c = p.output("c", DType::kBF16, {512, 384});
  Resource sms = Resource::sms(4).pipelined(4).clustered(s.cluster);
  p.role("multiply", sms, p.grid(c, kTile, kCols), [&](const Tile& t) {
    Value acc = p.zeros(DType::kF32, kTile, kCols);
    auto add = [&](const auto& load) {
      p.loop(kSize / kStep, [&](const Index& i) {
        Value x = load(i * kStep);
        acc = dot(acc, x, p.load(b.tile({t.col, i * kStep}, kCols, kStep)).T());
      });
    };
    Value picked = p.load(rows.tile({t.row, 0}, kTile, 1));
    add([&](const Index& k) { return p.load_rows(a.tile({0, k}, kTile, kStep), picked); });
    add([&](const Index& k) {
      Slice slice = d.tile({t.row, k}, kTile, kStep);
      return p.load(s.limit ? slice.until_row(500) : slice);
    });
    p.store(c.tile({t.row, t.col}, kTile, kCols), cast(acc, DType::kBF16));
  });
  return p.finish();
}

// The part of the text between two words.
std::string part(const GeneratedKernel& kernel, const std::string& from, const std::string& to) {
  std::size_t begin = kernel.source.find(from);
  return kernel.source.substr(begin, kernel.source.find(to, begin) - begin);
}

std::size_t count(const std::string& text, const std::string& what) {
  std::size_t n = 0;
  for (std::size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++n;
  return n;
}

TEST(RingTurns, OneThreadIssuesWhatTheOthersNeedNotCopy) {
  GeneratedKernel kernel = generate(product({}));
  std::string issuer =
      part(kernel, "threadIdx.x / 32 == 8 && elect_one()", "threadIdx.x / 32 != 8");
  expect_lines(
      issuer,
      {// A slot that threads fill.
       "mbarrier_wait_acquire_cta(&empty0[ring0.slot()], ring0.round() ^ 1);", "// by threads",
       "mbarrier_arrive_release_cta(&full0[ring0.slot()]);", "ring0.next();",
       "mbarrier_arrive_expect_tx(&full1[ring1.slot()], 24576);",
       // A slot that they may have written before.
       "mbarrier_wait_acquire_cta(&empty0[ring0.slot()], ring0.round() ^ 1);",
       "fence_proxy_async_shared();", "mbarrier_arrive_expect_tx(&full0[ring0.slot()], 16384);",
       "tma_load_3d(smem + 0 + ring0.slot() * 16384", "ring0.next();",
       "mbarrier_arrive_expect_tx(&full1[ring1.slot()], 24576);"});
  EXPECT_EQ(count(issuer, "fence_proxy_async_shared"), 1u) << issuer;
  expect_clean_build(kernel);
}

// So that none is more than a round behind.
TEST(RingTurns, AllWhoFillArriveAtEverySlot) {
  GeneratedKernel kernel = generate(product({}));
  expect_lines(kernel.source, {"mbarrier_init(bar, 97);", "mbarrier_init(bar, 1);"});
  std::string team = part(kernel, "threadIdx.x / 32 != 8", "// consumer");
  expect_lines(team,
               {"const Team team{threadIdx.x - 288,", "fill_rows<",
                "mbarrier_arrive_after_copies(&full0[ring0.slot()]);", "ring0.next();",
                "mbarrier_wait_acquire_cta(&empty0[ring0.slot()], ring0.round() ^ 1);", "// by TMA",
                "__syncwarp();", "if (team.tid % 32 == 0) mbarrier_arrive_warp_release_cta(&full0[",
                "ring0.next();"});
  EXPECT_EQ(count(team, "fill_"), 1u) << team;
  EXPECT_EQ(count(team, "ring1."), 0u) << team;
}

// What threads wrote to a slot, whether it was for this round or one before.
TEST(RingTurns, TheTensorCoreReadsAfterAFence) {
  GeneratedKernel kernel = generate(product({}));
  std::string consumer = kernel.source.substr(kernel.source.find("// consumer"));
  expect_lines(consumer, {"(&full0[0]", "fence_proxy_async_shared();", "dot_async<", "(&full0[0]",
                          "fence_proxy_async_shared();", "dot_async<"});
}

// TMA knows the end of the tensor alone.
TEST(RingTurns, RowsPastALimitAreCleared) {
  GeneratedKernel kernel = generate(product({.limit = true}));
  expect_lines(kernel.source, {"tma_load_3d(smem + 0 + ring0", "fill_rows<", "// consumer",
                               "dot_async<", "clear_rows(", "dot_async<"});
  expect_clean_build(kernel);
}

TEST(RingTurns, AClusterIsToldWhichLoadsItCannotShare) {
  try {
    generate(product({.cluster = 2}));
    FAIL() << "not refused";
  } catch (const UserError& e) {
    EXPECT_NE(std::string(e.what()).find("by TMA, which cannot: rows that an index picks"),
              std::string::npos)
        << e.what();
  }
}

}  // namespace
}  // namespace stretto::ring_turns_test
