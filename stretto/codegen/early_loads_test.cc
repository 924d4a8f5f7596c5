// Launches that overlap at their edges: what a kernel does before the launch before it has ended,
// and which kernels need all their blocks at once. A user who loses this reads what an earlier
// launch is still writing, or waits for blocks that never come.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "stretto/base/errors.h"
#include "stretto/codegen/kernel.h"
#include "stretto/codegen/residency.h"
#include "stretto/lang/program_builder.h"
#include "stretto/passes/pipeline.h"
#include "stretto/runtime/cuda/nvrtc.h"

namespace stretto::early_loads_test {
namespace {

constexpr int kStages = 5;

Program product(bool two_weights) {
  ProgramBuilder p("product", 1);
  auto a = p.input("a", DType::kBF16, {64, 512});
  auto b = p.input("b", DType::kBF16, {256, 512});
  auto b2 = p.input("b2", DType::kBF16, {256, 512});
  auto c = p.output("c", DType::kBF16, {64, 256});
  p.role("gemm", Resource::sms(3).pipelined(kStages), p.grid(c, 64, 64), [&](const Tile& t) {
    Value acc = p.zeros(DType::kF32, 64, 64), acc2 = p.zeros(DType::kF32, 64, 64);
    p.loop(8, [&](const Index& i) {
      Value rows = p.load(a.tile({t.row, i * 64}, 64, 64));
      acc = dot(acc, rows, p.load(b.tile({t.col, i * 64}, 64, 64)).T());
      if (two_weights) acc2 = dot(acc2, rows, p.load(b2.tile({t.col, i * 64}, 64, 64)).T());
    });
    p.store(c.tile({t.row, t.col}, 64, 64), cast(acc + acc2, DType::kBF16));
  });
  return p.finish();
}

std::string text_of(const Program& program, const std::set<std::string>& constants = {}) {
  GeneratedKernel kernel = generate_kernel(run_pipeline(program), {.constants = constants});
  if (cuda::has_nvrtc()) {
    cuda::KernelImage image = cuda::compile_cuda(kernel.expanded, "early.cu", {.use_cache = false});
    for (const cuda::KernelReport& r : cuda::kernel_reports(image.log)) {
      EXPECT_EQ(r.spill_store_bytes + r.spill_load_bytes + r.stack_bytes, 0) << kernel.source;
    }
  }
  return kernel.source;
}

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t n = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++n;
  return n;
}

// The part of the producer's text before, and after, it waits for the launch before.
std::pair<std::string, std::string> around_wait(const std::string& text) {
  std::size_t producer = text.find("// producer"), end = text.find("// consumer");
  EXPECT_NE(end, std::string::npos) << text;
  std::string own = text.substr(producer, end - producer);
  std::size_t wait = own.find("wait_for_previous_launch();");
  EXPECT_NE(wait, std::string::npos) << text;
  return {own.substr(0, wait), own.substr(wait)};
}

TEST(EarlyLoads, WeightsComeBeforeTheWaitAndTheRestOfTheSlotAfterIt) {
  for (bool two : {false, true}) {
    std::string text = text_of(product(two), {"b", "b2"});
    auto [before, after] = around_wait(text);
    std::size_t weights = two ? 2 : 1;
    EXPECT_EQ(count(before, "tma_load_3d("), weights) << text;
    EXPECT_EQ(count(before, "mbarrier_arrive_expect_tx(&full0[ahead0], "), 1u) << text;
    EXPECT_EQ(count(before, fmt::format("&& ahead0 < {}; ", kStages)), 2u) << text;  // tiles, steps
    EXPECT_EQ(count(before, "++ahead1"), two ? 1u : 0u) << text;  // a group of its own
    EXPECT_EQ(count(before, "mbarrier_wait"), 0u) << text;
    EXPECT_EQ(count(after, "tma_load_3d("), weights + 1) << text;
    // Each constant again, and the announcement of bytes, but not for slots that have them.
    EXPECT_EQ(count(after, "if (ahead0 == 0)"), 2u) << text;
    EXPECT_EQ(count(after, "if (ahead1 == 0)"), two ? 2u : 0u) << text;
    EXPECT_EQ(count(after, "if (ahead0 > 0) --ahead0;"), 1u) << text;
    // Nor does it wait for those to be empty, when they may be full and empty again.
    std::size_t wait = after.find("mbarrier_wait_acquire_cta(&empty0");
    ASSERT_NE(wait, std::string::npos) << text;
    EXPECT_EQ(after.rfind("if (ahead0 == 0) {\n", wait), after.rfind('\n', wait) - 18) << text;
    // Both agents wait, nobody else, and each before its tiles.
    EXPECT_EQ(count(text, "wait_for_previous_launch();\n"), 2u) << text;
    std::string consumer = text.substr(text.find("// consumer"));
    EXPECT_LT(consumer.find("wait_for_previous_launch();"), consumer.find("for (int")) << text;
  }
}

// A kernel of few rows that exchanges packets: its weights come early, its epoch does not.
TEST(EarlyLoads, TheEpochIsReadAfterTheWait) {
  ProgramBuilder p("product", 2);
  auto a = p.input("a", DType::kBF16, {8, 512});
  auto b = p.input("b", DType::kBF16, {64, 512});
  auto c = p.output("c", DType::kBF16, {8, 64});
  auto inbox = p.buffer("inbox", DType::kBF16, {8, 64},
                        {.space = Space::kSymmetric, .num_slots = 2, .packet = true});
  p.role("gemm", Resource::sms(2).pipelined(kStages), p.grid(c, 8, 32), [&](const Tile& t) {
    Value acc = p.zeros(DType::kF32, 8, 32);
    p.loop(8, [&](const Index& i) {
      acc =
          dot(acc, p.load(a.tile({0, i * 64}, 8, 64)), p.load(b.tile({t.col, i * 64}, 32, 64)).T());
    });
    auto part = [&](const TensorRef& box) { return box.tile({0, t.col}, 8, 32); };
    p.store_packet(part(inbox.on(1 - p.rank())), cast(acc, DType::kBF16));
    p.store(part(c), p.load_packet(part(inbox)));
  });
  std::string text = text_of(p.finish(), {"b"});
  auto [before, after] = around_wait(text);
  EXPECT_EQ(count(before, "tma_load_3d("), 1u) << text;
  EXPECT_EQ(count(text, "u64 epoch = "), 1u) << text;
  std::string consumer = text.substr(text.find("// consumer"));
  std::size_t epoch = consumer.find("u64 epoch = load_relaxed_sys(p.control + 32 + blockIdx.x);");
  ASSERT_NE(epoch, std::string::npos) << text;
  EXPECT_LT(consumer.find("wait_for_previous_launch();"), epoch) << text;
  EXPECT_EQ(count(text, "p.control"), 2u) << text;  // and where the block counts its launch
}

// A product of rows that another rank sends: meanwhile its weights are on their way.
TEST(EarlyLoads, InputsComeBeforeTheRoleWaitsForOtherRanks) {
  ProgramBuilder p("product", 2);
  auto a = p.input("a", DType::kBF16, {64, 512});
  auto b = p.input("b", DType::kBF16, {256, 512});
  auto full = p.buffer("full", DType::kBF16, {64, 512}, {.space = Space::kSymmetric});
  auto c = p.output("c", DType::kBF16, {64, 256});
  auto arrived = p.signal("arrived", 1);
  p.role("push", Resource::sms(1), p.range(1), [&](const Tile&) {
    p.put(full.on(1 - p.rank()).tile({0, 0}, 64, 512), a.tile({0, 0}, 64, 512));
    p.notify(arrived[0], 1 - p.rank());
  });
  p.role("gemm", Resource::sms(3).pipelined(kStages), p.grid(c, 64, 64), [&](const Tile& t) {
    p.wait(arrived[0], 1);
    Value acc = p.zeros(DType::kF32, 64, 64);
    p.loop(8, [&](const Index& i) {
      acc = dot(acc, p.load(full.tile({t.row, i * 64}, 64, 64)),
                p.load(b.tile({t.col, i * 64}, 64, 64)).T());
    });
    p.store(c.tile({t.row, t.col}, 64, 64), cast(acc, DType::kBF16));
  });
  std::string text = text_of(p.finish());
  std::size_t producer = text.find("// producer"), wait = text.find("wait_acquire_sys(", producer);
  ASSERT_NE(wait, std::string::npos) << text;
  std::string before = text.substr(producer, wait - producer);
  EXPECT_EQ(count(before, "tma_load_3d("), 1u) << text;
  EXPECT_EQ(count(before, "mbarrier_arrive_expect_tx(&full0[ahead0], "), 1u);
  EXPECT_EQ(count(text, "wait_for_previous_launch();\n"), 2u) << text;  // each role
  EXPECT_LT(text.rfind("wait_for_previous_launch();\n"), producer) << text;
}

TEST(EarlyLoads, NothingIsReadBeforeTheWaitWithoutConstants) {
  std::string text = text_of(product(false));
  EXPECT_EQ(count(text, "ahead"), 0u);
  EXPECT_EQ(count(text, "wait_for_previous_launch();\n"), 1u);
  EXPECT_LT(text.find("wait_for_previous_launch();\n"), text.find("tma_load_3d(")) << text;
}

TEST(EarlyLoads, OnlyInputsAreConstant) {
  for (const char* name : {"c", "nowhere"}) {
    try {
      generate_kernel(run_pipeline(product(false)), {.constants = {name}});
      FAIL() << name;
    } catch (const UserError& e) {
      EXPECT_NE(std::string(e.what()).find(name), std::string::npos) << e.what();
    }
  }
}

// `from` notifies, `to` waits, in roles of one own worker each but `to` of `waiting`.
struct Edge {
  int from, to;
};

Program roles(const std::vector<Edge>& edges, int waiting, bool other_rank = false) {
  ProgramBuilder p("roles", 2);
  std::vector<SignalRef> signals;
  for (std::size_t i = 0; i < edges.size(); ++i) {
    signals.push_back(p.signal(fmt::format("s{}", i), 1));
  }
  auto out = p.output("out", DType::kF32, {3, 128});
  for (int role = 0; role < 3; ++role) {
    bool waits = false;
    for (const Edge& e : edges) waits |= e.to == role;
    p.role(fmt::format("r{}", role), Resource::sms(waits ? waiting : 1), p.range(1),
           [&, role](const Tile&) {
             for (std::size_t i = 0; i < edges.size(); ++i) {
               if (edges[i].to == role) p.wait(signals[i][0], 1);
             }
             p.store(out.tile({role, 0}, 1, 128), p.zeros(DType::kF32, 1, 128));
             for (std::size_t i = 0; i < edges.size(); ++i) {
               Index to = other_rank ? (p.rank() + 1) % 2 : p.rank();
               if (edges[i].from == role) p.notify(signals[i][0], to);
             }
           });
  }
  return p.finish();
}

TEST(Residency, IsNeededWhereAWaitMayBeForABlockThatHasNoRoom) {
  auto needed = [](const Program& p) { return needs_all_resident(p, kMostWaitingBlocks); };
  EXPECT_FALSE(needed(product(false)));
  EXPECT_FALSE(needed(roles({{0, 1}, {0, 2}}, 1)));
  EXPECT_FALSE(needed(roles({{0, 1}, {0, 2}}, kMostWaitingBlocks / 2)));
  EXPECT_TRUE(needed(roles({{0, 1}, {0, 2}}, kMostWaitingBlocks / 2 + 1)));
  EXPECT_TRUE(needed(roles({{0, 1}, {1, 2}}, 1)));        // of one that waits itself
  EXPECT_TRUE(needed(roles({{0, 1}, {0, 2}}, 1, true)));  // of another rank
  ProgramBuilder p("edge", 1);
  auto s = p.signal("s");
  p.on_start([&] { p.notify_all(s); });
  p.on_end([&] { p.wait_all(s); });
  EXPECT_TRUE(needed(p.finish()));
}

}  // namespace
}  // namespace stretto::early_loads_test
