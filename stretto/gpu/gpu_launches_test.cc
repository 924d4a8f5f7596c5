// What a launch costs its host: what was prepared once is neither encoded nor allocated again, and
// the driver is called so many times and no more. A user who loses this waits for the host. Needs
// two GPUs.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <bit>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "stretto/base/allocations_testing.h"
#include "stretto/base/errors.h"
#include "stretto/gpu/gpu_instance.h"
#include "stretto/lang/program_builder.h"
#include "stretto/runtime/cuda/driver_calls_testing.h"

namespace stretto::gpu_launches_test {
namespace {

constexpr int kRanks = 2, kRows = 128, kCols = 64, kDepth = 128, kChunks = 8,
              kChunkRows = kRows / kChunks;
constexpr std::size_t kBytes = std::size_t{kRows} * kCols * 4, kRowBytes = kCols * 4;
static_assert(kDepth * 2 == kCols * 4);  // rows of either program's `in`

// out = in * weights^T, on each rank by itself: what a tensor map loads.
Program multiply() {
  ProgramBuilder p("multiply", kRanks);
  Index rows = p.extent("rows", kRows);
  auto in = p.input("in", DType::kBF16, {rows, kDepth});
  auto weights = p.input("weights", DType::kBF16, {kCols, kDepth});
  auto out = p.output("out", DType::kF32, {rows, kCols});
  p.role("multiply", Resource::sms(2).pipelined(2), p.grid(kRows, kCols, 64, kCols),
         [&](const Tile& t) {
           Value sum = p.zeros(DType::kF32, 64, kCols);
           p.loop(kDepth / 64, [&](const Index& i) {
             sum = dot(sum, p.load(in.tile({t.row, i * 64}, 64, 64)),
                       p.load(weights.tile({0, i * 64}, kCols, 64)).T());
           });
           p.store(out.tile({t.row, 0}, 64, kCols), sum);
         });
  return p.finish();
}

// out = the peer's `in`, which copy engines send in chunks, + 1.
Program send_and_add() {
  ProgramBuilder p("send_and_add", kRanks);
  Index rows = p.extent("rows", kRows);
  auto in = p.input("in", DType::kF32, {rows, kCols});
  auto out = p.output("out", DType::kF32, {rows, kCols});
  auto full = p.buffer("full", DType::kF32, {kRows, kCols}, {.space = Space::kSymmetric});
  auto ready = p.signal("ready");
  auto arrived = p.signal("arrived", kChunks);
  Index peer = 1 - p.rank();
  p.on_start([&] { p.notify(ready, peer); });
  p.role("send", Resource::copy_engine(1), p.range(kChunks), [&](const Tile& t) {
    p.wait(ready, peer);
    p.copy(full.on(peer).tile({t.index * kChunkRows, 0}, kChunkRows, kCols),
           in.tile({t.index * kChunkRows, 0}, kChunkRows, kCols));
    p.notify(arrived[t.index], peer);
  });
  p.role("add", Resource::sms(2), p.range(kChunks), [&](const Tile& t) {
    p.wait(arrived[t.index], 1);
    p.store(out.tile({t.index * kChunkRows, 0}, kChunkRows, kCols),
            p.load(full.tile({t.index * kChunkRows, 0}, kChunkRows, kCols)) + 1.0);
  });
  return p.finish();
}

class GpuLaunches : public ::testing::Test {
 protected:
  void SetUp() override {
    if (cuda::num_devices() < kRanks) GTEST_SKIP() << "needs two GPUs";
    world_ = std::make_unique<GpuWorld>(GpuWorldOptions{.size = kRanks});
    in_ = world_->allocate(2 * kBytes);
    out_ = world_->allocate(kBytes);
    weights_ = world_->allocate(kCols * kDepth * 2);
    for (int r = 0; r < kRanks; ++r) {
      world_->stream(r).fill_words(weights_.addresses()[static_cast<std::size_t>(r)],
                                   halves_of(1.0f / kDepth), kCols * kDepth / 2);
    }
  }

  void start(const Program& program) {
    instance_ = std::make_unique<GpuInstance>(*world_, prove(lower(program)));
    args_ = at(0);
  }

  // Launches on `in` that begins at this row of its memory.
  Args at(int row) const {
    const Program& p = instance_->program();
    Args args{.tensors = std::vector<TensorArg>(p.tensors.size())};
    std::vector<cuda::CUdeviceptr> in = in_.addresses();
    for (cuda::CUdeviceptr& address : in) address += row * kRowBytes;
    args.tensors[static_cast<std::size_t>(p.find_tensor("in"))].on = in;
    args.tensors[static_cast<std::size_t>(p.find_tensor("out"))].on = out_.addresses();
    if (has_weights()) {
      args.tensors[static_cast<std::size_t>(p.find_tensor("weights"))].on = weights_.addresses();
    }
    return args;
  }
  bool has_weights() const { return instance_->program().name == "multiply"; }

  template <typename Call>
  static std::string error_of(Call call) {
    try {
      call();
    } catch (const UserError& e) {
      return e.what();
    }
    return "";
  }

  static std::uint32_t halves_of(float value) {  // twice, in bfloat16
    std::uint32_t half = std::bit_cast<std::uint32_t>(value) >> 16;
    return half << 16 | half;
  }

  // Every element of rank r's rows from `row` on is `value` + r.
  void fill(int row, int value) const {
    for (int r = 0; r < kRanks; ++r) {
      auto of_rank = static_cast<float>(value + r);
      world_->stream(r).fill_words(
          in_.addresses()[static_cast<std::size_t>(r)] + row * kRowBytes,
          has_weights() ? halves_of(of_rank) : std::bit_cast<std::uint32_t>(of_rank), kBytes / 4);
    }
  }

  void expect_out(int value, bool of_peer, const std::string& when) {
    instance_->wait();
    for (int r = 0; r < kRanks; ++r) {
      std::vector<float> out(kBytes / 4);
      world_->stream(r).download(out.data(), out_.addresses()[static_cast<std::size_t>(r)], kBytes);
      world_->stream(r).synchronize();
      auto expected = static_cast<float>(of_peer ? value + 1 - r + 1 : value + r);
      std::size_t wrong = 0;
      for (float v : out) wrong += v != expected ? 1 : 0;
      EXPECT_EQ(wrong, 0u) << when << ": rank " << r << " has " << out[0] << ", not " << expected;
    }
  }

  using Counts = std::map<std::string, std::int64_t>;
  // Of a launch on both ranks that was launched before, without the current device's setting.
  Counts calls_of_launch() {
    cuda::DriverCalls calls;
    instance_->launch(args_, extents_);
    Counts counts;
    for (const auto& [name, n] : calls.counts()) {
      if (name != "cuCtxSetCurrent") counts[name.substr(0, name.find("_v"))] = n;
    }
    return counts;
  }

  std::unique_ptr<GpuWorld> world_;
  SymmetricGpuMemory in_, out_, weights_;
  std::unique_ptr<GpuInstance> instance_;
  Args args_;
  std::vector<std::int64_t> extents_ = {kRows};
};

TEST_F(GpuLaunches, EncodeNothingForAddressesSeenBefore) {
  start(multiply());
  EXPECT_EQ(instance_->num_encoded(), 0);
  auto launch_at = [&](int row) {
    fill(row, row + 3);
    instance_->launch(at(row), extents_);
    expect_out(row + 3, false, fmt::format("from row {}", row));
    return instance_->num_encoded();
  };
  const std::int64_t once = launch_at(0);
  EXPECT_GT(once, 0);
  EXPECT_EQ(launch_at(0), once);
  EXPECT_EQ(launch_at(1), 2 * once);
  EXPECT_EQ(launch_at(0), 2 * once) << "what was seen before is forgotten";
  EXPECT_EQ(launch_at(1), 2 * once);
  // So many others that the first are forgotten.
  constexpr auto kOthers = static_cast<int>(GpuInstance::kMostPrepared);
  for (int row = 2; row < 2 + kOthers; ++row) launch_at(row);
  EXPECT_EQ(instance_->num_encoded(), (2 + kOthers) * once);
  EXPECT_EQ(launch_at(0), (3 + kOthers) * once);
}

TEST_F(GpuLaunches, EncodeNothingForExtentsSeenBefore) {
  start(multiply());
  auto launch_with = [&](int rows) {
    extents_ = {rows};
    instance_->launch(args_, extents_);
    instance_->wait();
    return instance_->num_encoded();
  };
  const std::int64_t once = launch_with(kRows);
  EXPECT_EQ(launch_with(5), 2 * once);
  EXPECT_EQ(launch_with(kRows), 2 * once);
  EXPECT_EQ(launch_with(5), 2 * once);
  EXPECT_ANY_THROW(launch_with(kRows + 1));
  EXPECT_ANY_THROW(launch_with(kRows + 1)) << "what was refused was kept";
  EXPECT_EQ(launch_with(kRows), 2 * once);
}

TEST_F(GpuLaunches, AllocateNothingOnceTheyWereMade) {
  for (bool engines : {false, true}) {
    for (bool replays : {false, true}) {
      start(engines ? send_and_add() : multiply());
      instance_->replay_copies(replays);
      for (int i = 0; i < 3; ++i) instance_->launch(args_, extents_);
      instance_->wait();
      cuda::DriverCalls swallowed(cuda::DriverCalls::Mode::kSwallow);
      EXPECT_EQ(count_allocations([&] { instance_->launch(args_, extents_); }), 0u)
          << (engines ? "engines" : "SMs") << (replays ? ", replayed" : "");
    }
  }
  EXPECT_GT(count_allocations([] { std::vector<int> counted(8); }), 0u) << "nothing is counted";
}

TEST_F(GpuLaunches, WhatHasNoAddressIsNamed) {
  start(multiply());
  for (const char* name : {"in", "weights", "out"}) {
    Args args = args_;
    auto at = static_cast<std::size_t>(instance_->program().find_tensor(name));
    args.tensors[at].on.assign(kRanks, 0);
    EXPECT_EQ(error_of([&] { instance_->launch(args, extents_); }),
              fmt::format("multiply: tensor '{}' has no address", name));
    args.tensors[at] = {};
    EXPECT_NE(error_of([&] { instance_->launch(args, extents_); }), "") << name;
  }
  // What has no rows needs no place.
  Args empty = args_;
  auto in = static_cast<std::size_t>(instance_->program().find_tensor("in"));
  empty.tensors[in].on.assign(kRanks, 0);
  EXPECT_EQ(error_of([&] { instance_->launch(empty, std::vector<std::int64_t>{0}); }), "");
  instance_->wait();
}

TEST_F(GpuLaunches, CodeOfAnotherProgramIsRefused) {
  const Proved proved = prove(lower(multiply()));
  EXPECT_EQ(error_of([&] { GpuInstance(*world_, proved, generate(lower(send_and_add()))); }),
            "multiply: the code is of another program, not of the program that was proved");
  EXPECT_EQ(error_of([&] { GpuInstance(*world_, proved, GpuCode{}); }),
            "multiply: the code is of no program, not of the program that was proved");
  // The same program, lowered once more.
  EXPECT_EQ(error_of([&] { GpuInstance(*world_, proved, generate(lower(multiply()))); }), "");
}

TEST_F(GpuLaunches, CallTheDriverOnceForAKernel) {
  start(multiply());
  instance_->launch(args_, extents_);
  EXPECT_EQ(calls_of_launch(), (Counts{{"cuLaunchKernelEx", kRanks}}));
  instance_->wait();
}

TEST_F(GpuLaunches, CallTheDriverForEachCopyUnlessTheyAreReplayed) {
  start(send_and_add());
  instance_->launch(args_, extents_);
  const Counts enqueued = calls_of_launch();
  // A copy and a signal for each chunk; gate and kernel; a bell is awaited and written; the queue
  // begins after the stream and ends before it goes on.
  EXPECT_EQ(enqueued, (Counts{{"cuMemcpyDtoDAsync", kRanks * 2 * kChunks},
                              {"cuLaunchKernelEx", kRanks * 2},
                              {"cuStreamWaitValue64", kRanks},
                              {"cuStreamWriteValue64", kRanks},
                              {"cuEventRecord", kRanks * 2},
                              {"cuStreamWaitEvent", kRanks * 2},
                              {"cuStreamGetCaptureInfo", kRanks}}));
  instance_->replay_copies(true);
  instance_->launch(args_, extents_);  // makes the graphs
  EXPECT_EQ(calls_of_launch(),
            (Counts{{"cuGraphLaunch", kRanks}, {"cuStreamGetCaptureInfo", kRanks * 2}}));
  instance_->wait();
}

TEST_F(GpuLaunches, ReplayedCopiesBringWhatIsThereNow) {
  start(send_and_add());
  instance_->replay_copies(true);
  for (int i = 0; i < 12; ++i) {
    const int row = i % 3 == 2 ? 1 : 0;  // two memories by turns
    fill(row, 7 * i);
    instance_->launch(at(row), extents_);
    expect_out(7 * i, true, fmt::format("launch {}", i));
  }
  // Without waiting between them, and with copies that are enqueued one by one in between.
  for (int i = 0; i < 12; ++i) {
    instance_->replay_copies(i % 4 != 3);
    fill(0, 5 * i);
    instance_->launch(args_, extents_);
  }
  expect_out(5 * 11, true, "the last of many");
}

}  // namespace
}  // namespace stretto::gpu_launches_test
