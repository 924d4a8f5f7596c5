// Kernels that record: the timestamps are where the events are, and a kernel that does not record
// has nothing of them. A user who loses this has timelines that lie, or pays for those not asked
// for.
#include "stretto/codegen/record_text.h"

#include <gtest/gtest.h>

#include "stretto/codegen/kernel_testing.h"
#include "stretto/lang/program_builder.h"
#include "stretto/runtime/cuda/nvrtc.h"

namespace stretto::record_text_test {
namespace {

GeneratedKernel recording(const Program& program) {
  return generate_kernel(run_pipeline(program), {.record = true});
}

// A pipelined product that waits for its rows, which another role announces.
Program announced_gemm(int cluster) {
  constexpr std::int64_t kM = 256, kN = 512, kK = 1024;
  ProgramBuilder p("announced_gemm", 2);
  auto a = p.input("a", DType::kBF16, {kM, kK});
  auto b = p.input("b", DType::kBF16, {kN, kK});
  auto c = p.output("c", DType::kBF16, {kM, kN});
  SignalRef free = p.signal("free"), ready = p.signal("ready", 2);
  Index peer = (p.rank() + 1) % 2;
  p.on_start([&] { p.notify(free, peer); });
  p.role("announce", Resource::sms(1), p.range(2), [&](const Tile& t) {
    p.wait(free, peer);
    p.notify(ready[t.index], peer);
  });
  Resource sms = Resource::sms(4).pipelined(4).clustered(cluster);
  p.role("gemm", sms, p.grid(c, 128, 256), [&](const Tile& t) {
    p.wait(ready[t.m]);
    Value acc = p.zeros(DType::kF32, 128, 256);
    p.loop(kK / 64, [&](const Index& i) {
      Value left = p.load(a.tile({t.row, i * 64}, 128, 64));
      acc = dot(acc, left, p.load(b.tile({t.col, i * 64}, 256, 64)).T());
    });
    p.store(c.tile({t.row, t.col}, 128, 256), cast(acc, DType::kBF16));
  });
  return p.finish();
}

TEST(RecordText, NothingWhereItIsOff) {
  GeneratedKernel kernel = generate(announced_gemm(1));
  for (const char* word :
       {"record_tile", "record_wait", "record_notify", "lanes", "EventLog", "event.h", "_ns = "}) {
    EXPECT_EQ(kernel.source.find(word), std::string::npos) << word;
  }
  EXPECT_TRUE(kernel.launch.event_lanes.empty());
}

TEST(RecordText, EventsStandAroundWhatTheyTime) {
  GeneratedKernel kernel = recording(announced_gemm(1));
  expect_lines(
      kernel.source,
      {"#include \"stretto/device/sm90/event.h\"", "  EventLog events;\n};",
       "EventLane* const lanes = reinterpret_cast<EventLane*>(smem + ",
       "open_lane(lanes[threadIdx.x], p.events", "__syncthreads();",
       // on_start
       "const u64 notify_ns = global_timer_ns();", "add_release_sys(p.signals[",
       "record_notify(lanes[2], 0 + ", "// role 'announce'", "record_tile_begin(lanes[0]);",
       "const u64 wait_ns = global_timer_ns();", "wait_acquire_sys(",
       "record_wait(lanes[0], counter, wait_ns);", "const u64 notify_ns = global_timer_ns();",
       "add_release_sys(p.signals[", "record_notify(lanes[0], 2 + ", "record_tile_end(lanes[0], ",
       "// role 'gemm'", "// producer", "record_tile_begin(lanes[0]);", "tma_load_3d(",
       "record_tile_end(lanes[0], ", "// consumer", "if (team.tid == 0) ",
       "record_tile_begin(lanes[1]);", "dot_async<", "store_tma<", "record_tile_end(lanes[1], ",
       "if (threadIdx.x < 4) close_lane("});
  expect_clean_build(kernel);
}

TEST(RecordText, EveryLaneHasItsPlace) {
  GeneratedKernel kernel = recording(announced_gemm(2));
  const LaunchPlan& launch = kernel.launch;
  // Two agents for each of nine blocks, rounded up to clusters, on_start and on_end.
  ASSERT_EQ(launch.event_lanes.size(), static_cast<std::size_t>(2 * launch.grid + 2));
  int lanes[2][2] = {};
  for (const EventLanePlan& lane : launch.event_lanes) {
    if (lane.role >= 0) ++lanes[lane.role][lane.agent];
  }
  EXPECT_EQ(lanes[0][0], 1);
  EXPECT_EQ(lanes[0][1], 0);
  EXPECT_EQ(lanes[1][0], 4) << "a cluster's first block speaks for it";
  EXPECT_EQ(lanes[1][1], 4);
  EXPECT_EQ(launch.event_lanes.back().role, -1);
  EXPECT_EQ(launch.event_lanes.back().agent, 1);
  expect_lines(kernel.source, {"epoch, cta == 0 || threadIdx.x >= 2);"});
  expect_clean_build(kernel);
}

// Kernels that fill an SM have some hundred bytes left for lanes; static shared memory would take a
// thousand, as the rest is aligned.
TEST(RecordText, LanesTakeFewBytesBesideSlots) {
  GeneratedKernel as_it_is = generate(announced_gemm(1)), kernel = recording(announced_gemm(1));
  EXPECT_LE(kernel.launch.shared_bytes, as_it_is.launch.shared_bytes + 16 + 4 * 40);
  if (!cuda::has_nvrtc()) GTEST_SKIP() << "no NVRTC";
  cuda::KernelImage image = cuda::compile_cuda(kernel.expanded, "kernel.cu", {.use_cache = false});
  EXPECT_EQ(image.log.find(" smem"), std::string::npos) << image.log;
}

TEST(RecordText, PacketsAreWaitedForByOneThreadOfTheLane) {
  ProgramBuilder p("packets", 2);
  TensorRef in = p.input("in", DType::kBF16, {8, 64});
  TensorRef inbox = p.buffer("inbox", DType::kBF16, {8, 64},
                             {.space = Space::kSymmetric, .num_slots = 2, .packet = true});
  TensorRef out = p.output("out", DType::kBF16, {8, 64});
  Index peer = (p.rank() + 1) % 2;
  p.role("swap", Resource::sms(1), p.range(1), [&](const Tile&) {
    p.store_packet(inbox.on(peer).tile({0, 0}, 8, 64), p.load(in.tile({0, 0}, 8, 64)));
    p.store(out.tile({0, 0}, 8, 64), p.load_packet(inbox.tile({0, 0}, 8, 64)));
  });
  GeneratedKernel kernel = recording(p.finish());
  expect_lines(kernel.source, {"const u64 wait_ns = global_timer_ns();", "load_packets<",
                               "if (team.tid == 0) record_wait(lanes[0], -1, wait_ns);"});
  expect_clean_build(kernel);
}

TEST(RecordText, TheClockKernelCompiles) {
  if (!cuda::has_nvrtc()) GTEST_SKIP() << "no NVRTC";
  cuda::KernelImage image =
      cuda::compile_cuda(clock_kernel_text(), "clock.cu", {.use_cache = false});
  EXPECT_EQ(cuda::kernel_reports(image.log).size(), 1u) << image.log;
}

}  // namespace
}  // namespace stretto::record_text_test
