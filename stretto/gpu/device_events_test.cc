// Timestamps of kernels: what the devices leave becomes spans and notifies on one axis. A user who
// loses this looks for a bottleneck in the wrong place. The last tests need GPUs.
#include "stretto/gpu/device_events.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "stretto/base/json.h"
#include "stretto/base/test_seed.h"
#include "stretto/gpu/gpu_instance.h"
#include "stretto/lang/program_builder.h"
#include "stretto/runtime/cuda/driver.h"

namespace stretto::device_events_test {
namespace {

constexpr int kRanks = 2, kCols = 64, kTiles = 12;

// Every rank sends its rows to the other, which adds them to its own, row by row.
Program add_rows() {
  ProgramBuilder p("add_rows", kRanks);
  TensorRef in = p.input("in", DType::kF32, {kTiles, kCols});
  TensorRef inbox = p.buffer("inbox", DType::kF32, {kTiles, kCols}, {.space = Space::kSymmetric});
  TensorRef out = p.output("out", DType::kF32, {kTiles, kCols});
  SignalRef free = p.signal("free"), sent = p.signal("sent", kTiles);
  Index peer = 1 - p.rank();
  p.on_start([&] { p.notify(free, peer); });
  p.role("send", Resource::sms(2), p.range(kTiles), [&](const Tile& t) {
    p.wait(free, peer);
    p.put_signal(inbox.on(peer).tile({t.index, 0}, 1, kCols), in.tile({t.index, 0}, 1, kCols),
                 sent[t.index], peer);
  });
  p.role("add", Resource::sms(3), p.range(kTiles), [&](const Tile& t) {
    p.wait(sent[t.index]);
    p.store(out.tile({t.index, 0}, 1, kCols),
            p.load(in.tile({t.index, 0}, 1, kCols)) + p.load(inbox.tile({t.index, 0}, 1, kCols)));
  });
  return p.finish();
}

// A clock that drifts by a ten-thousandth is off by a tile within a second.
TEST(HostTime, FollowsADriftingClockBetweenTwoReadings) {
  std::uint64_t seed = test_seed();
  SCOPED_TRACE(testing::Message() << "STRETTO_TEST_SEED=" << seed);
  std::mt19937_64 random(seed);
  for (int i = 0; i < 1000; ++i) {
    double rate = 1 + (static_cast<double>(random() % 2001) - 1000) * 1e-7;
    auto begin = static_cast<std::int64_t>(1'700'000'000'000'000'000 + random() % 1'000'000'000);
    auto device = [&](std::int64_t host_ns) {  // host time counts from 5e9
      return begin + std::llround(rate * static_cast<double>(host_ns - 5'000'000'000));
    };
    std::int64_t first_ns = 5'000'000'000, last_ns = first_ns + 1'000'000'000;
    std::int64_t error = static_cast<std::int64_t>(random() % 1000);
    ClockReading first{first_ns, device(first_ns) + error, error};
    ClockReading last{last_ns, device(last_ns) - error, error};
    std::int64_t at = first_ns + static_cast<std::int64_t>(random() % 1'000'000'000);
    EXPECT_NEAR(static_cast<double>(host_time(device(at), first, last) - at), 0,
                static_cast<double>(error) + 2);
  }
}

TEST(HostTime, OneReadingIsAnOffset) {
  ClockReading only{.host_ns = 1000, .device_ns = 5'000'000, .error_ns = 0};
  EXPECT_EQ(host_time(5'000'123, only, only), 1123);
}

TEST(AddEvents, SpansAndNotifiesCarryTheNamesOfTheProgram) {
  Proved compiled = prove(lower(add_rows()));
  GeneratedKernel kernel = generate_kernel(compiled.program(), {.record = true});
  const LaunchPlan& launch = kernel.launch;
  std::vector<LaneEvents> lanes(launch.event_lanes.size());
  auto lane = std::find_if(launch.event_lanes.begin(), launch.event_lanes.end(),
                           [](const EventLanePlan& l) { return l.role == 1 && l.worker == 2; });
  ASSERT_NE(lane, launch.event_lanes.end());
  std::size_t l = static_cast<std::size_t>(lane - launch.event_lanes.begin());
  std::int64_t sent = launch.signal_offsets[1];
  lanes[l].kept = {{.begin_ns = 110,
                    .end_ns = 130,
                    .what = sent + 7,
                    .epoch = 4,
                    .kind = DeviceEventKind::kWait},
                   {.begin_ns = 100, .end_ns = 190, .what = 7, .epoch = 4}};
  lanes[l].num_seen = 5;
  std::size_t on_start = lanes.size() - 2;
  lanes[on_start].kept = {{.begin_ns = 90,
                           .end_ns = 90,
                           .what = 0,
                           .epoch = 4,
                           .kind = DeviceEventKind::kNotify,
                           .rank = 1}};
  lanes[on_start].num_seen = 1;
  Recorder recorder(kRanks);
  ClockReading clock{.host_ns = 1000, .device_ns = 0};
  add_events(compiled.program(), launch, 0, lanes, clock, clock, recorder);

  std::vector<Span> spans = recorder.spans();
  ASSERT_EQ(spans.size(), 3u);
  EXPECT_EQ(spans[0].kind, SpanKind::kLaunch);
  EXPECT_EQ(spans[0].begin_ns, 1090);
  EXPECT_EQ(spans[0].end_ns, 1190);
  EXPECT_EQ(spans[1].kind, SpanKind::kTile);
  EXPECT_EQ(spans[1].tile, 7);
  EXPECT_EQ(spans[1].worker, 2);
  EXPECT_STREQ(spans[1].role, "add");
  EXPECT_EQ(spans[1].epoch, 4);
  EXPECT_EQ(spans[2].kind, SpanKind::kWait);
  EXPECT_STREQ(spans[2].detail, "sent");
  EXPECT_EQ(spans[2].channel, 7);
  EXPECT_EQ(spans[2].begin_ns, 1110);
  EXPECT_EQ(spans[2].end_ns, 1130);
  EXPECT_EQ(recorder.num_dropped(), 3);
}

// Slices of the written file; its times count from the first event.
std::vector<Json> notifies_of(const Recorder& recorder) {
  std::filesystem::path path = std::filesystem::path(testing::TempDir()) / "notifies.json";
  recorder.write_trace(path);
  Json trace = read_json_file(path);
  std::filesystem::remove(path);
  std::vector<Json> found;
  for (const Json& event : trace["traceEvents"]) {
    if (event.value("cat", "") == "notify") found.push_back(event);
  }
  return found;
}

class GpuRecording : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!cuda::has_driver() || cuda::num_devices() < kRanks) GTEST_SKIP() << "needs two GPUs";
  }
};

TEST_F(GpuRecording, ClocksAreReadToTheMicrosecond) {
  GpuWorld world({.size = kRanks});
  for (int r = 0; r < kRanks; ++r) {
    DeviceClock clock(world.device(r));
    ClockReading a = clock.read(world.stream(r)), b = clock.read(world.stream(r));
    RecordProperty("clock_error_ns", std::to_string(a.error_ns));
    EXPECT_LT(a.error_ns, 10'000) << "rank " << r;
    EXPECT_GE(a.error_ns, 0);
    // In the milliseconds between them the clocks go apart by less than the readings' errors.
    std::int64_t drift = (b.host_ns - b.device_ns) - (a.host_ns - a.device_ns);
    EXPECT_LE(std::abs(drift), a.error_ns + b.error_ns + 2'000) << "rank " << r;
  }
}

// Tiles, waits and notifies by epoch, of one recorded run.
struct Seen {
  std::map<std::string, int> tiles, waits;
  int launches = 0;
};

TEST_F(GpuRecording, EveryTileIsThereAndNoWaitEndsBeforeItsNotify) {
  constexpr int kLaunches = 5;
  GpuWorld world({.size = kRanks});
  Proved compiled = prove(lower(add_rows()));
  GpuInstance instance(world, compiled, generate(compiled.lowered(), {.record = true}));
  std::size_t bytes = kTiles * kCols * 4;
  SymmetricGpuMemory in = world.allocate(bytes), out = world.allocate(bytes);
  Args args{.tensors = {{.on = in.addresses()}, {}, {.on = out.addresses()}}};
  for (int r = 0; r < kRanks; ++r) {
    world.stream(r).fill_bytes(in.addresses()[static_cast<std::size_t>(r)], 0, bytes);
  }
  Recorder recorder(kRanks);
  auto launch = [&](int times) {
    for (int i = 0; i < times; ++i) instance.launch(args, {});
    instance.wait();
  };
  launch(2);  // not recorded
  instance.set_recording(true);
  launch(kLaunches);
  std::int64_t error_ns = instance.collect(recorder);
  EXPECT_GT(error_ns, 0);
  EXPECT_LT(error_ns, 20'000);
  EXPECT_EQ(recorder.num_dropped(), 0);

  Seen seen;
  for (const Span& span : recorder.spans()) {
    EXPECT_LE(span.begin_ns, span.end_ns);
    if (span.kind == SpanKind::kTile) {
      EXPECT_LT(span.begin_ns, span.end_ns);
      ++seen.tiles[span.role];
    }
    if (span.kind == SpanKind::kWait) ++seen.waits[span.role];
    if (span.kind == SpanKind::kLaunch) ++seen.launches;
  }
  constexpr int kEach = kRanks * kLaunches * kTiles;
  EXPECT_EQ(seen.tiles, (std::map<std::string, int>{{"add", kEach}, {"send", kEach}}));
  EXPECT_EQ(seen.waits, (std::map<std::string, int>{{"add", kEach}, {"send", kEach}}));
  EXPECT_EQ(seen.launches, kRanks * kLaunches);

  // By signal, channel, rank and epoch there is one notify.
  std::int64_t origin_ns = recorder.spans().front().begin_ns;
  std::map<std::pair<std::string, std::int64_t>, std::int64_t> notified;
  for (const Json& mark : notifies_of(recorder)) {
    notified[{mark["name"], mark["args"]["epoch"]}] =
        origin_ns + std::llround(mark["ts"].get<double>() * 1000);
  }
  EXPECT_EQ(notified.size(), static_cast<std::size_t>(kRanks * kLaunches * (kTiles + 1)));
  for (const Span& span : recorder.spans()) {
    if (span.kind != SpanKind::kWait) continue;
    auto cause = notified.find(
        {fmt::format("notify {}[{}] on rank {}", span.detail, span.channel, span.rank),
         span.epoch});
    ASSERT_NE(cause, notified.end()) << span.detail << "[" << span.channel << "]";
    EXPECT_GE(span.end_ns, cause->second - error_ns) << span.detail << "[" << span.channel << "]";
  }

  instance.set_recording(false);
  launch(1);
  Recorder nothing(kRanks);
  instance.collect(nothing);
  EXPECT_TRUE(nothing.spans().empty());
}

TEST_F(GpuRecording, WhatDoesNotFitIsCounted) {
  GpuWorld world({.size = kRanks});
  Proved compiled = prove(lower(add_rows()));
  GpuInstance instance(world, compiled, generate(compiled.lowered(), {.record = true}));
  std::size_t bytes = kTiles * kCols * 4;
  SymmetricGpuMemory in = world.allocate(bytes), out = world.allocate(bytes);
  Args args{.tensors = {{.on = in.addresses()}, {}, {.on = out.addresses()}}};
  instance.set_recording(true);
  constexpr int kLaunches = 5'000;
  for (int i = 0; i < kLaunches; ++i) instance.launch(args, {});
  instance.wait();
  Recorder recorder(kRanks, std::size_t{1} << 22);
  instance.collect(recorder);
  std::int64_t of_add = 0;
  for (const Span& span : recorder.spans()) of_add += std::string(span.role) == "add" ? 1 : 0;
  EXPECT_EQ(of_add, std::int64_t{kRanks} * kLaunches * kTiles * 2) << "tiles and waits, all kept";
  // The two workers of `send` have a tile, a wait and a notify of each row, in five blocks' lanes.
  constexpr std::int64_t kCapacity = DeviceEvents::kMaxEventsOfRank / (5 + 2);
  EXPECT_EQ(recorder.num_dropped(), 2 * kRanks * (kLaunches * kTiles / 2 * 3 - kCapacity));
  EXPECT_GT(recorder.num_dropped(), 0);
}

}  // namespace
}  // namespace stretto::device_events_test
