// A rank that never comes: the others abort in time and say what they waited for, and after
// recovery the same instance and the same captured graphs give right results. Needs two GPUs.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "stretto/base/errors.h"
#include "stretto/gpu/gpu_instance.h"
#include "stretto/lang/program_builder.h"
#include "stretto/runtime/cuda/driver.h"

namespace stretto::gpu_fault_test {
namespace {

constexpr int kRanks = 2, kCols = 64, kSide = 128;

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

// Every rank sends to its right neighbour once that one has begun, by all means there are.
Program sends_to_neighbour(int store_slots) {
  ProgramBuilder p("sends_to_neighbour", kRanks);
  auto left = p.input("left", DType::kBF16, {kSide, kSide});
  auto right_factor = p.input("right", DType::kBF16, {kSide, kSide});
  auto symmetric = [&](const char* name, DType dtype) {
    return p.output(name, dtype, {kSide, kSide}, Space::kSymmetric);
  };
  TensorRef stored = symmetric("stored", DType::kF32), copied = symmetric("copied", DType::kBF16),
            product = symmetric("product", DType::kBF16);
  SignalRef begun = p.signal("begun"), sent = p.signal("sent", 3);
  Index right = (p.rank() + 1) % kRanks, left_rank = (p.rank() + kRanks - 1) % kRanks;
  p.on_start([&] { p.notify(begun, left_rank); });
  p.role("store", Resource::sms(1), p.range(2), [&](const Tile& t) {
    p.wait(begun, right);
    p.store(stored.on(right).tile({t.index * 64, 0}, 64, kSide),
            cast(p.load(left.tile({t.index * 64, 0}, 64, kSide)), DType::kF32));
    p.notify(sent[0], right);
  });
  p.role("copy", Resource::sms(1), p.range(1), [&](const Tile&) {
    p.wait(begun, right);
    p.put_signal(copied.on(right).tile({0, 0}, kSide, kSide), left.tile({0, 0}, kSide, kSide),
                 sent[1], right);
  });
  Resource multipliers = Resource::sms(1).pipelined(2).with_epilogue(store_slots);
  p.role("multiply", multipliers, p.range(1), [&](const Tile&) {
    Value acc = p.zeros(DType::kF32, kSide, kSide);
    p.loop(kSide / 64, [&](const Index& i) {
      acc = dot(acc, p.load(left.tile({0, i * 64}, kSide, 64)),
                p.load(right_factor.tile({0, i * 64}, kSide, 64)).T());
    });
    p.wait(begun, right);
    p.store(product.on(right).tile({0, 0}, kSide, kSide), cast(acc, DType::kBF16));
    p.notify(sent[2], right);
  });
  p.on_end([&] {
    p.wait(sent[0], 2);
    p.wait(sent[1], 1);
    p.wait(sent[2], 1);
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
  GpuInstance instance(world, prove(lower(ring_add())));
  SymmetricGpuMemory in = world.allocate(kCols * 4), out = world.allocate(kCols * 4);
  Args args{.tensors = {{.on = in.addresses()}, {}, {.on = out.addresses()}}};
  fill(world, in);
  poison(world, out);
  instance.launch(args, {});
  instance.wait();
  expect_sums(world, out, "before");

  // Captured before the fault, replayed after it.
  std::vector<cuda::GraphExec> graphs;
  for (int r = 0; r < kRanks; ++r) {
    world.stream(r).begin_capture();
    instance.launch(args, {}, r, world.stream(r));
    graphs.push_back(world.stream(r).end_capture());
  }

  instance.launch(args, {}, 0, world.stream(0));  // rank 1 never comes
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
    EXPECT_EQ(fault.record().expected, 1) << report;  // of this launch, the second
    EXPECT_EQ(fault.record().channel, 1) << report;
    EXPECT_EQ(fault.record().waited_for, 1) << report;
    EXPECT_EQ(fault.record().tile, 0) << report;
    EXPECT_EQ(fault.record().role, fault.record().signal == "free" ? "send" : "add") << report;
  }
  EXPECT_LT(Clock::now() - begin, 10 * kTimeout) << report;
  EXPECT_THROW(instance.launch(args, {}), Fault) << "a world with a fault takes no launch";

  world.clear_fault();
  instance.recover();
  for (int round = 0; round < 3; ++round) {
    poison(world, out);
    instance.launch(args, {});
    instance.wait();
    expect_sums(world, out, "launched again");
    poison(world, out);
    for (int r = 0; r < kRanks; ++r) graphs[static_cast<std::size_t>(r)].launch(world.stream(r));
    instance.wait();
    expect_sums(world, out, "replayed");
  }
}

// A second thread that aborts raises the abort word while the first still writes what it saw.
TEST_F(GpuFault, ARecordThatIsBeingWrittenIsWaitedFor) {
  GpuWorld world({.size = kRanks});
  int id = world.add_fault_source("late", [](const DeviceFault& fault) {
    return FaultRecord{.program = "late", .rank = fault.rank, .reason = "the first wait"};
  });
  // Memory of the host has the same address there.
  auto* record = reinterpret_cast<volatile DeviceFault*>(world.fault_record());
  record->claimed = 1;
  world.abort();
  std::thread writer([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds{100});
    record->rank = 1 + GpuWorld::kFaultSources * id;
    std::atomic_thread_fence(std::memory_order_release);
    record->ready = 1;
  });
  try {
    world.throw_fault();
    ADD_FAILURE() << "no fault";
  } catch (const Fault& fault) {
    EXPECT_EQ(fault.record().program, "late") << fault.what();
    EXPECT_EQ(fault.record().rank, 1) << fault.what();
    EXPECT_EQ(fault.record().reason, "the first wait");
  }
  writer.join();
  world.remove_fault_source(id);
}

// Whoever got the Fault may look at its memory: what others store there once they have aborted,
// in the same launch or one that was already enqueued, would be of a launch that never was.
TEST_F(GpuFault, NothingIsStoredToOthersAfterAnAbortedWait) {
  constexpr std::size_t kElements = std::size_t{kSide} * kSide;
  constexpr int kOutputs = 3;
  for (int store_slots : {0, 2}) {
    SCOPED_TRACE(store_slots);
    GpuWorld world({.size = kRanks, .timeout = std::chrono::milliseconds{300}});
    GpuInstance instance(world, prove(lower(sends_to_neighbour(store_slots))));
    const std::size_t widths[] = {4, 2, 2};
    SymmetricGpuMemory left = world.allocate(kElements * 2), right = world.allocate(kElements * 2);
    std::vector<SymmetricGpuMemory> outputs;
    Args args{.tensors = {{.on = left.addresses()}, {.on = right.addresses()}}};
    for (std::size_t width : widths) {
      outputs.push_back(world.allocate(kElements * width));
      args.tensors.push_back({.on = outputs.back().addresses()});
    }
    auto poison_all = [&] {
      for (int r = 0; r < kRanks; ++r) {
        auto at = static_cast<std::size_t>(r);
        world.stream(r).fill_bytes(left.addresses()[at], 0, kElements * 2);
        world.stream(r).fill_bytes(right.addresses()[at], 0, kElements * 2);
        for (int o = 0; o < kOutputs; ++o) {
          auto out = static_cast<std::size_t>(o);
          world.stream(r).fill_bytes(outputs[out].addresses()[at], 0xff, kElements * widths[out]);
        }
      }
      world.synchronize();
    };
    auto expect_all = [&](unsigned char byte, const char* when) {
      for (int o = 0; o < kOutputs; ++o) {
        auto out = static_cast<std::size_t>(o);
        std::vector<unsigned char> bytes(kElements * widths[out]);
        world.stream(1).download(bytes.data(), outputs[out].addresses()[1], bytes.size());
        world.stream(1).synchronize();
        auto others =
            std::count_if(bytes.begin(), bytes.end(), [&](unsigned char b) { return b != byte; });
        EXPECT_EQ(others, 0) << when << ": output " << o << " of rank 1";
      }
    };
    poison_all();
    for (int launch = 0; launch < 3; ++launch) instance.launch(args, {}, 0, world.stream(0));
    EXPECT_THROW(instance.wait(), Fault);
    expect_all(0xff, "rank 1 never came");
    world.clear_fault();
    instance.recover();
    poison_all();
    instance.launch(args, {});
    instance.wait();
    expect_all(0, "recovered");
  }
}

}  // namespace
}  // namespace stretto::gpu_fault_test
