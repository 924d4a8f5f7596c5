// Which roles copy engines run, and what their queues do. A user who loses this gets copies of
// wrong rows, counters that read the wrong launch, or SMs taken from the product without being told
// why.
#include "stretto/codegen/copy_engine_plan.h"

#include <gtest/gtest.h>

#include "stretto/codegen/kernel.h"
#include "stretto/lang/program_builder.h"
#include "stretto/passes/pipeline.h"
#include "stretto/runtime/cuda/nvrtc.h"

namespace stretto::copy_engine_plan_test {
namespace {

using Lists = std::vector<std::vector<std::string>>;

Lists lists(const Program& schedule, const LaunchPlan& launch, int rank,
            const std::vector<std::int64_t>& extents) {
  Lists out;
  for (const std::vector<EngineStep>& queue :
       engine_steps(schedule, launch.signal_offsets, launch.engines, rank, extents)) {
    out.emplace_back();
    for (const EngineStep& step : queue) {
      out.back().push_back(to_string(schedule, launch.signal_offsets, launch.engines, rank, step));
    }
  }
  return out;
}

// Every rank's rows into every rank's `out`: tile t is rows of rank t.
struct Gather {
  int world = 3, queues = 1;
  int slots = 1;
  bool scalar = false;
  bool count_elsewhere = false;  // an SM role notifies `done` too
  bool reads_at_end = false;     // what was gathered, in on_end
};
Program gather(const Gather& g) {
  ProgramBuilder p("gather", g.world);
  Index m = p.extent("m", 12);
  Index shift = g.scalar ? p.scalar("shift", 1) : Index(0);
  auto in = p.input("in", DType::kF32, {ceil_div(m, g.world), 8}, Space::kSymmetric);
  auto out = p.output("out", DType::kF32, {m, 8});
  auto box = p.buffer("box", DType::kF32, {12, 8}, {.num_slots = g.slots});
  auto ready = p.signal("ready"), done = p.signal("done");
  p.on_start([&] { p.notify_all(ready); });
  Index rows = ceil_div(m, g.world);
  p.role("gather", Resource::copy_engine(g.queues), p.range(g.world), [&](const Tile& t) {
    Index owner = p.let("owner", (p.rank() + t.index) % g.world);
    Index count = p.let("count", max(min(m - owner * rows, rows), 0));
    p.wait(ready, owner);
    const TensorRef& to = g.slots > 1 ? box : out;
    p.copy(to.tile({owner * rows + shift, 0}, 4, 8).until_row(owner * rows + count),
           in.on(owner).tile({0, 0}, 4, 8).until_row(count));
    p.notify(done, owner);
  });
  if (g.slots == 1) {
    p.role("fill", Resource::sms(1), p.range(1), [&](const Tile&) {
      p.store(box.tile({0, 0}, 12, 8), p.zeros(DType::kF32, 12, 8));
      if (g.count_elsewhere) p.notify_all(done);
    });
  }
  TensorRef copied;
  if (g.reads_at_end) copied = p.output("copied", DType::kF32, {4, 8});
  p.on_end([&] {
    p.wait_all(done);
    if (g.reads_at_end) p.store(copied.tile({0, 0}, 4, 8), p.load(out.tile({0, 0}, 4, 8)));
  });
  return run_pipeline(p.finish());
}

std::string refusal(const Program& schedule) {
  LaunchPlan launch = generate_kernel(schedule).launch;
  EXPECT_TRUE(launch.engines.roles.empty());
  EXPECT_TRUE(launch.gate.empty());
  return launch.engines.on_sms.empty() ? "none" : launch.engines.on_sms[0].why;
}

TEST(CopyEnginePlan, RaggedRowsInTheOrderOfTheTiles) {
  Program schedule = gather({.world = 3});
  GeneratedKernel kernel = generate_kernel(schedule);
  EXPECT_TRUE(kernel.launch.engines.on_sms.empty());
  EXPECT_EQ(kernel.launch.grid, 1) << "the queues take no block";
  EXPECT_EQ(lists(schedule, kernel.launch, 1, {7}),  // 3, 3 and 1 rows of 32 bytes
            (Lists{{"gate", "copy out@1+96 <- in@1+0 96 bytes", "signal done[1]@1 to 1",
                    "copy out@1+192 <- in@2+0 32 bytes", "signal done[1]@2 to 1",
                    "copy out@1+0 <- in@0+0 96 bytes", "signal done[1]@0 to 1"}}));
  EXPECT_EQ(lists(schedule, kernel.launch, 0, {0}),
            (Lists{{"gate", "signal done[0]@0 to 1", "signal done[0]@1 to 1",
                    "signal done[0]@2 to 1"}}))
      << "a launch without rows notifies as often";
}

Program send(int queues, bool waits_at_start = false);

TEST(CopyEnginePlan, QueuesTakeTilesAsWorkersDo) {
  Program schedule = gather({.world = 4, .queues = 2});
  GeneratedKernel kernel = generate_kernel(schedule);
  EXPECT_EQ(lists(schedule, kernel.launch, 3, {8}),
            (Lists{{"gate", "copy out@3+192 <- in@3+0 64 bytes", "signal done[3]@3 to 1",
                    "copy out@3+64 <- in@1+0 64 bytes", "signal done[3]@1 to 1"},
                   {"gate", "copy out@3+0 <- in@0+0 64 bytes", "signal done[3]@0 to 1",
                    "copy out@3+128 <- in@2+0 64 bytes", "signal done[3]@2 to 1"}}));
}

// Columns [8, 16) of 32, in pieces: two rows of 32 bytes. Two pieces count in one counter, so their
// queues are one.
TEST(CopyEnginePlan, PitchedCopiesAndCountersSharedByWorkers) {
  ProgramBuilder p("sample", 2);
  auto x = p.input("x", DType::kF32, {4, 32}, Space::kSymmetric);
  auto y = p.output("y", DType::kF32, {4, 8});
  auto ready = p.signal("ready");
  auto here = p.signal("here", 1), read = p.signal("read", 1);
  Index peer = 1 - p.rank();
  p.on_start([&] { p.notify(ready, peer); });
  p.role("fetch", Resource::copy_engine(2), p.range(2), [&](const Tile& t) {
    p.wait(ready, peer);
    p.copy(y.tile({t.index * 2, 0}, 2, 8), x.on(peer).tile({t.index * 2, 8}, 2, 8));
    p.notify(here[0], p.rank());
    p.notify(read[0], peer);
  });
  p.on_end([&] {
    p.wait(here[0], 2);
    p.wait(read[0], 2);
  });
  Program schedule = run_pipeline(p.finish());
  GeneratedKernel kernel = generate_kernel(schedule);
  EXPECT_EQ(lists(schedule, kernel.launch, 0, {}),
            (Lists{{"gate", "copy y@0+0 <- x@1+32 2 rows of 32 bytes", "signal here[0]@0 to 1",
                    "signal read[0]@1 to 1", "copy y@0+64 <- x@1+288 2 rows of 32 bytes",
                    "signal here[0]@0 to 2", "signal read[0]@1 to 2"}}));
  EXPECT_EQ(kernel.launch.engines.marks[0],
            (std::vector<EngineMark>{{0, 2, 2, 1}, {0, 2, 2, 2}, {1, 3, 2, 1}, {1, 3, 2, 2}}));
}

// A role that waits for the kernel's own work.
Program send(int queues, bool waits_at_start) {
  ProgramBuilder p("send", 2);
  auto x = p.input("x", DType::kF32, {4, 32});
  auto y = p.buffer("y", DType::kF32, {4, 32});
  auto z = p.output("z", DType::kF32, {4, 32}, Space::kSymmetric);
  auto free = p.signal("free");
  auto computed = p.signal("computed", 4), sent = p.signal("sent", 4);
  SignalRef here;
  if (waits_at_start) here = p.signal("here");
  Index peer = 1 - p.rank();
  p.on_start([&] {
    p.notify(free, peer);
    if (!waits_at_start) return;
    p.notify(here, peer);
    p.wait(here, 1);
  });
  p.role("compute", Resource::sms(1), p.range(4), [&](const Tile& t) {
    p.store(y.tile({t.index, 0}, 1, 32), p.load(x.tile({t.index, 0}, 1, 32)));
    p.notify(computed[t.index], p.rank());
  });
  p.role("send", Resource::copy_engine(queues), p.range(4), [&](const Tile& t) {
    p.wait(free, peer);
    p.wait(computed[t.index], 1);
    p.copy(z.on(peer).tile({t.index, 0}, 1, 32), y.tile({t.index, 0}, 1, 32));
    p.notify(sent[t.index], peer);
  });
  p.on_end([&] { p.loop(4, [&](const Index& i) { p.wait(sent[i], 1); }); });
  return run_pipeline(p.finish());
}

TEST(CopyEnginePlan, QueuesThatWaitForTheKernelHaveDoorbells) {
  Program schedule = send(2);
  GeneratedKernel kernel = generate_kernel(schedule);
  EXPECT_EQ(kernel.launch.engines.first_gate_bell, 4);
  EXPECT_EQ(kernel.launch.engines.num_bells, 6);
  EXPECT_EQ(kernel.launch.grid, 2) << "one block more rings them";
  EXPECT_EQ(lists(schedule, kernel.launch, 0, {}),
            (Lists{{"gate", "bell 0", "copy z@1+0 <- y@0+0 128 bytes", "signal sent[0]@1 to 1",
                    "bell 1", "copy z@1+256 <- y@0+256 128 bytes", "signal sent[2]@1 to 1"},
                   {"gate", "bell 2", "copy z@1+128 <- y@0+128 128 bytes", "signal sent[1]@1 to 1",
                    "bell 3", "copy z@1+384 <- y@0+384 128 bytes", "signal sent[3]@1 to 1"}}));
}

// What the stream holds before the gate is complete when the gate begins, and the launch ends after
// it.
TEST(CopyEnginePlan, TheKernelBeginsBesideAGateThatOnlyNotifies) {
  GeneratedKernel kernel = generate_kernel(send(1));
  EXPECT_TRUE(kernel.launch.beside_gate);
  EXPECT_FALSE(kernel.launch.cooperative) << "as such a launch does not begin early";
  std::size_t main = kernel.source.find("stretto_send(");
  std::string gate = kernel.source.substr(0, main), after = kernel.source.substr(main);
  EXPECT_LT(gate.find("let_next_launch_start();"), gate.find("// on_start"));
  EXPECT_LT(gate.find("p.engine_words[i] = word;"), gate.find("ring_release_sys(")) << gate;
  std::size_t end = after.find("bool last = false;");
  EXPECT_EQ(after.substr(0, end).find("wait_for_previous_launch();"), std::string::npos) << after;
  EXPECT_NE(after.find("wait_for_previous_launch();", end), std::string::npos) << after;

  EXPECT_FALSE(generate_kernel(send(1), {.record = true}).launch.beside_gate);
}

TEST(CopyEnginePlan, GateAndDoorbellsAreCleanKernels) {
  GeneratedKernel kernel = generate_kernel(send(2));
  std::size_t gate = kernel.source.find("stretto_send_gate(");
  std::size_t main = kernel.source.find("stretto_send(");
  ASSERT_NE(gate, std::string::npos) << kernel.source;
  ASSERT_NE(main, std::string::npos) << kernel.source;
  std::string before = kernel.source.substr(gate, main - gate), after = kernel.source.substr(main);
  EXPECT_NE(before.find("// on_start"), std::string::npos) << before;
  EXPECT_NE(before.find("wait_acquire_sys("), std::string::npos) << before;
  EXPECT_NE(before.find("p.engine_words[i] = word;"), std::string::npos) << before;
  EXPECT_EQ(after.find("// on_start"), std::string::npos) << "announced once";
  EXPECT_NE(after.find("ring_release_sys(p.engine_bells + bell++);"), std::string::npos) << after;
  if (!cuda::has_nvrtc()) GTEST_SKIP() << "no NVRTC";
  cuda::KernelImage image = cuda::compile_cuda(kernel.expanded, "send.cu", {.use_cache = false});
  std::vector<cuda::KernelReport> reports = cuda::kernel_reports(image.log);
  ASSERT_EQ(reports.size(), 2u) << image.log;
  for (const cuda::KernelReport& r : reports) {
    EXPECT_EQ(r.spill_store_bytes + r.spill_load_bytes + r.stack_bytes, 0) << r.kernel;
    EXPECT_TRUE(r.warnings.empty()) << r.warnings[0];
  }
}

TEST(CopyEnginePlan, SaysWhyBlocksStandIn) {
  EXPECT_EQ(refusal(gather({.slots = 2})), "the slot of 'box' changes with every launch");
  EXPECT_EQ(refusal(gather({.scalar = true})),
            "it depends on the scalar 'shift', which the device may know alone");
  EXPECT_EQ(refusal(gather({.count_elsewhere = true})), "others notify 'done' too");
  EXPECT_EQ(refusal(gather({.reads_at_end = true})),
            "on_end does more than wait, and does not come after queues");
  EXPECT_EQ(refusal(send(1, true)), "on_start waits, and queues begin after it");
  EXPECT_EQ(refusal(gather({.world = 1})),
            "it notifies, and there is no other rank to copy the words from");
}

}  // namespace
}  // namespace stretto::copy_engine_plan_test
