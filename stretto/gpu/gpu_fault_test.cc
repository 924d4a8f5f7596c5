// A rank that never comes: the others give up in time and say what they waited for, and after
// recovery the same instance and the same captured graphs give right results. Needs two GPUs.
#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <string>
#include <vector>

#include "stretto/base/errors.h"
#include "stretto/gpu/gpu_instance.h"
#include "stretto/lang/program_builder.h"
#include "stretto/runtime/cuda/driver.h"

namespace stretto {
namespace {

constexpr int kRanks = 2, kCols = 64;

// Every rank adds its neighbour's row to its own.
Program ring_add() {
  ProgramBuilder p("ring_add", kRanks);
  TensorRef in = p.input("in", DType::kF32, {1, kCols});
  TensorRef inbox = p.buffer("inbox", DType::kF32, {1, kCols}, {.space = Space::kSymmetric});
  TensorRef out = p.output("out", DType::kF32, {1, kCols});
  SignalRef free = p.signal("free"), sent = p.signal("sent");
  Index right = (p.rank() + 1) % kRanks, left = (p.rank() + kRanks - 1) % kRanks;
  p.on_start([&] { p.notify(free, left); });
  p.role("send", Resource::sms(1), p.range(1), [&](const Tile&) {
    p.wait(free, right);
    p.put_signal(inbox.on(right).tile({0, 0}, 1, kCols), in.tile({0, 0}, 1, kCols), sent[p.rank()],
                 right);
  });
  p.role("add", Resource::sms(1), p.range(1), [&](const Tile&) {
    p.wait(sent, left);
    p.store(out.tile({0, 0}, 1, kCols),
            p.load(in.tile({0, 0}, 1, kCols)) + p.load(inbox.tile({0, 0}, 1, kCols)));
  });
  return p.finish();
}

class GpuFault : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!cuda::has_driver() || cuda::num_devices() < kRanks) GTEST_SKIP() << "needs two GPUs";
  }

  // Row r holds 100 * r + column; the sum of both ranks' rows is expected everywhere.
  static void fill(GpuWorld& world, const SymmetricGpuMemory& in) {
    for (int r = 0; r < kRanks; ++r) {
      std::vector<float> row(kCols);
      for (int c = 0; c < kCols; ++c) row[static_cast<std::size_t>(c)] = 100.f * r + c;
      world.stream(r).upload(in.addresses()[static_cast<std::size_t>(r)], row.data(), kCols * 4);
    }
    world.synchronize();
  }
  static void poison(GpuWorld& world, const SymmetricGpuMemory& out) {
    for (int r = 0; r < kRanks; ++r) {
      world.stream(r).fill_bytes(out.addresses()[static_cast<std::size_t>(r)], 0xff, kCols * 4);
    }
    world.synchronize();
  }
  static void expect_sums(GpuWorld& world, const SymmetricGpuMemory& out, const char* when) {
    for (int r = 0; r < kRanks; ++r) {
      std::vector<float> row(kCols);
      world.stream(r).download(row.data(), out.addresses()[static_cast<std::size_t>(r)], kCols * 4);
      world.stream(r).synchronize();
      for (int c = 0; c < kCols; ++c) {
        ASSERT_EQ(row[static_cast<std::size_t>(c)], 100.f + 2 * c)
            << when << ": rank " << r << " column " << c;
      }
    }
  }
};

TEST_F(GpuFault, ARankThatDoesNotComeIsNamedAndTheWorldRecovers) {
  using Clock = std::chrono::steady_clock;
  constexpr std::chrono::milliseconds kTimeout{300};
  GpuWorld world({.size = kRanks, .timeout = kTimeout});
  GpuInstance instance(world, compile(ring_add()));
  SymmetricGpuMemory in = world.allocate(kCols * 4), out = world.allocate(kCols * 4);
  GpuLaunchArgs args{.tensors = {in.addresses(), {}, out.addresses()}};
  fill(world, in);
  poison(world, out);
  instance.launch(args);
  instance.wait();
  expect_sums(world, out, "before");

  // Captured before the fault, replayed after it.
  std::vector<cuda::GraphExec> graphs;
  for (int r = 0; r < kRanks; ++r) {
    world.stream(r).begin_capture();
    instance.launch(args, r, world.stream(r));
    graphs.push_back(world.stream(r).end_capture());
  }

  instance.launch(args, 0, world.stream(0));  // rank 1 never comes
  auto begin = Clock::now();
  std::string report;
  try {
    instance.wait();
    ADD_FAILURE() << "no fault";
  } catch (const Fault& fault) {
    report = fault.what();
    EXPECT_EQ(fault.record().rank, 0) << report;
    EXPECT_EQ(fault.record().program, "ring_add") << report;
    EXPECT_TRUE(fault.record().signal == "free" || fault.record().signal == "sent") << report;
    EXPECT_LT(fault.record().seen, fault.record().expected) << report;
  }
  EXPECT_LT(Clock::now() - begin, 10 * kTimeout) << report;
  EXPECT_THROW(instance.launch(args), Fault) << "a world with a fault takes no launch";

  world.clear_fault();
  instance.recover();
  for (int round = 0; round < 3; ++round) {
    poison(world, out);
    instance.launch(args);
    instance.wait();
    expect_sums(world, out, "launched again");
    poison(world, out);
    for (int r = 0; r < kRanks; ++r) graphs[static_cast<std::size_t>(r)].launch(world.stream(r));
    instance.wait();
    expect_sums(world, out, "replayed");
  }
}

}  // namespace
}  // namespace stretto
