// Copy engines under kernels that wait for them: data before its signal in every one of thousands
// of launches, in graphs too, and a rank that never comes. Needs two GPUs.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "stretto/base/errors.h"
#include "stretto/gpu/gpu_instance.h"
#include "stretto/gpu/gpu_launches_testing.h"
#include "stretto/lang/program_builder.h"
#include "stretto/runtime/cuda/driver.h"
#include "stretto/runtime/cuda/module.h"
#include "stretto/runtime/recorder.h"

namespace stretto::gpu_engine_test {
namespace {

using Clock = std::chrono::steady_clock;
constexpr int kRanks = 2, kRows = 512, kCols = 1024, kChunks = 4, kChunkRows = kRows / kChunks;
constexpr std::size_t kBytes = std::size_t{kRows} * kCols * 4;

enum class Way { kPull, kSend };

// sum += the peer's `in`, which travels through `full` in chunks. kPull: queues wait for nobody's
// kernel. kSend: the kernel copies `in` first, and its queues send what is copied.
Program accumulate(Way way) {
  ProgramBuilder p("accumulate", kRanks);
  auto in = p.input("in", DType::kF32, {kRows, kCols}, Space::kSymmetric);
  auto sum = p.state("sum", DType::kF32, {kRows, kCols});
  auto full = p.buffer("full", DType::kF32, {kRows, kCols}, {.space = Space::kSymmetric});
  auto ready = p.signal("ready");
  auto arrived = p.signal("arrived", kChunks);
  Index peer = 1 - p.rank();
  p.on_start([&] { p.notify(ready, peer); });
  auto chunk = [&](const TensorRef& x, const Index& i) {
    return x.tile({i * kChunkRows, 0}, kChunkRows, kCols);
  };
  if (way == Way::kPull) {
    auto done = p.signal("done");
    p.role("pull", Resource::copy_engine(1), p.range(kChunks), [&](const Tile& t) {
      p.wait(ready, peer);
      p.copy(chunk(full, t.index), chunk(in.on(peer), t.index));
      p.notify(arrived[t.index], p.rank());
      p.when(t.index == kChunks - 1, [&] { p.notify(done, peer); });
    });
    p.on_end([&] { p.wait(done, peer); });
  } else {
    auto copied = p.buffer("copied", DType::kF32, {kRows, kCols});
    auto computed = p.signal("computed", kChunks);
    p.role("compute", Resource::sms(16), p.range(kRows / 16), [&](const Tile& t) {
      p.loop(kCols / 256, [&](const Index& j) {
        p.store(copied.tile({t.index * 16, j * 256}, 16, 256),
                p.load(in.tile({t.index * 16, j * 256}, 16, 256)));
      });
      p.notify(computed[t.index * 16 / kChunkRows], p.rank());
    });
    p.role("send", Resource::copy_engine(2), p.range(kChunks), [&](const Tile& t) {
      p.wait(ready, peer);
      p.wait(computed[t.index], kChunkRows / 16);
      p.copy(chunk(full.on(peer), t.index), chunk(copied, t.index));
      p.notify(arrived[t.index], peer);
    });
  }
  p.role("add", Resource::sms(64), p.range(kRows / 16), [&](const Tile& t) {
    p.wait(arrived[t.index * 16 / kChunkRows], 1);
    p.loop(kCols / 256, [&](const Index& j) {
      Value old = p.load(sum.tile({t.index * 16, j * 256}, 16, 256));
      p.store(sum.tile({t.index * 16, j * 256}, 16, 256),
              old + p.load(full.tile({t.index * 16, j * 256}, 16, 256)));
    });
  });
  return p.finish();
}

// c = the peer's rows * b^T, by blocks that leave no room on any SM, while queues send the rows.
constexpr std::int64_t kProductRows = 512;
Program multiply(int num_sms, std::int64_t k) {
  ProgramBuilder p("multiply", kRanks);
  std::int64_t cols = ceil_div(std::int64_t{num_sms}, kProductRows / 128) * 256;
  auto in = p.input("in", DType::kBF16, {kProductRows, k}, Space::kSymmetric);
  auto b = p.input("b", DType::kBF16, {cols, k});
  auto c = p.output("c", DType::kBF16, {kProductRows, cols});
  auto full = p.buffer("full", DType::kBF16, {kProductRows, k}, {.space = Space::kSymmetric});
  auto ready = p.signal("ready");
  auto arrived = p.signal("arrived", kChunks);
  Index peer = 1 - p.rank();
  p.on_start([&] { p.notify(ready, peer); });
  p.role("send", Resource::copy_engine(1), p.range(kChunks), [&](const Tile& t) {
    auto chunk = [&](const TensorRef& x) { return x.tile({t.index * 128, 0}, 128, k); };
    p.wait(ready, peer);
    p.copy(chunk(full.on(peer)), chunk(in));
    p.notify(arrived[t.index], peer);
  });
  p.role("multiply", Resource::sms(num_sms).pipelined(4), p.grid(c, 128, 256), [&](const Tile& t) {
    p.wait(arrived[t.m], 1);
    Value sum = p.zeros(DType::kF32, 128, 256);
    p.loop(k / 64, [&](const Index& i) {
      sum = dot(sum, p.load(full.tile({t.row, i * 64}, 128, 64)),
                p.load(b.tile({t.col, i * 64}, 256, 64)).T());
    });
    p.store(c.tile({t.row, t.col}, 128, 256), cast(sum, DType::kBF16));
  });
  return p.finish();
}

// Both ranks' `sum` become rank 0's `in`: a copy within a rank, and one between two.
Program broadcast() {
  ProgramBuilder p("broadcast", kRanks);
  auto in = p.input("in", DType::kF32, {kRows, kCols}, Space::kSymmetric);
  auto sum = p.output("sum", DType::kF32, {kRows, kCols}, Space::kSymmetric);
  auto ready = p.signal("ready");
  auto arrived = p.signal("arrived");
  p.on_start([&] { p.notify(ready, 0); });
  p.role("send", Resource::copy_engine(1), p.range(kRanks), [&](const Tile& t) {
    p.when(p.rank() == 0, [&] {
      p.wait(ready, t.index);
      p.copy(sum.on(t.index).tile({0, 0}, kRows, kCols), in.tile({0, 0}, kRows, kCols));
      p.notify(arrived, t.index);
    });
  });
  p.on_end([&] { p.wait(arrived, 0); });
  return p.finish();
}

// sum = in, and the peer's `full`, too, which waits for the peer.
Program keep_and_send() {
  ProgramBuilder p("keep_and_send", kRanks);
  auto in = p.input("in", DType::kF32, {kRows, kCols}, Space::kSymmetric);
  auto sum = p.output("sum", DType::kF32, {kRows, kCols});
  auto full = p.buffer("full", DType::kF32, {kRows, kCols}, {.space = Space::kSymmetric});
  auto ready = p.signal("ready"), arrived = p.signal("arrived");
  Index peer = 1 - p.rank();
  p.on_start([&] { p.notify(ready, peer); });
  p.role("keep", Resource::sms(8), p.grid(kRows, kCols, 16, 256), [&](const Tile& t) {
    p.store(sum.tile({t.row, t.col}, 16, 256), p.load(in.tile({t.row, t.col}, 16, 256)));
  });
  p.role("send", Resource::copy_engine(1), p.range(1), [&](const Tile&) {
    p.wait(ready, peer);
    p.copy(full.on(peer).tile({0, 0}, kRows, kCols), in.tile({0, 0}, kRows, kCols));
    p.notify(arrived, peer);
  });
  p.on_end([&] { p.wait(arrived, peer); });
  return p.finish();
}

class GpuEngines : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!cuda::has_driver() || cuda::num_devices() < kRanks) GTEST_SKIP() << "needs two GPUs";
    world_ = std::make_unique<GpuWorld>(
        GpuWorldOptions{.size = kRanks, .timeout = std::chrono::milliseconds(2000)});
    in_ = world_->allocate(kBytes);
    sum_ = world_->allocate(kBytes);
  }

  void start(Way way) { start(accumulate(way)); }
  void start(const Program& program) {
    instance_ = std::make_unique<GpuInstance>(*world_, prove(lower(program)));
    EXPECT_NE(instance_->source().find("queues of the copy engines"), std::string::npos)
        << instance_->source().substr(0, 1000);
    const Program& p = instance_->program();
    args_.tensors.resize(p.tensors.size());
    args_.tensors[static_cast<std::size_t>(p.find_tensor("in"))].on = in_.addresses();
    args_.tensors[static_cast<std::size_t>(p.find_tensor("sum"))].on = sum_.addresses();
    clear();
  }

  void clear() {
    for (int r = 0; r < kRanks; ++r) {
      world_->stream(r).fill_bytes(sum_.addresses()[static_cast<std::size_t>(r)], 0, kBytes);
    }
    world_->synchronize();
    expected_.assign(kRanks, 0);
  }

  // The rows of launch i, larger than those of the launch before: every element of a rank alike.
  static float element(int i, int rank) { return static_cast<float>(i % 100 + 1 + 100 * rank); }
  void fill(int i, int rank) const {
    world_->stream(rank).fill_words(in_.addresses()[static_cast<std::size_t>(rank)],
                                    std::bit_cast<std::uint32_t>(element(i, rank)), kBytes / 4);
  }
  void expect_one_more(int i) {
    for (int r = 0; r < kRanks; ++r)
      expected_[static_cast<std::size_t>(kRanks - 1 - r)] += element(i, r);
  }
  void next_input(int i) {
    for (int r = 0; r < kRanks; ++r) fill(i, r);
    expect_one_more(i);
  }

  void expect_sums(const std::string& when) {
    for (int r = 0; r < kRanks; ++r) {
      auto at = static_cast<std::size_t>(r);
      std::vector<float> sums(kBytes / 4);
      world_->stream(r).download(sums.data(), sum_.addresses()[at], kBytes);
      world_->stream(r).synchronize();
      std::size_t wrong = 0;
      for (float v : sums) wrong += v != static_cast<float>(expected_[at]) ? 1 : 0;
      EXPECT_EQ(wrong, 0u) << when << ": rank " << r << ", sums[0] = " << sums[0] << ", expected "
                           << expected_[at];
    }
  }

  std::vector<cuda::GraphExec> capture() {
    return capture([&](int r) { instance_->launch(args_, {}, r, world_->stream(r)); });
  }
  std::vector<cuda::GraphExec> capture(const std::function<void(int rank)>& enqueue) {
    std::vector<cuda::GraphExec> graphs;
    for (int r = 0; r < kRanks; ++r) {
      world_->stream(r).begin_capture();
      enqueue(r);
      graphs.push_back(world_->stream(r).end_capture());
    }
    return graphs;
  }
  void replay(const std::vector<cuda::GraphExec>& graphs) {
    for (int r = 0; r < kRanks; ++r) graphs[static_cast<std::size_t>(r)].launch(world_->stream(r));
  }

  void launch_often(int on_gpus, const std::string& when) {
    int launches = launches_here(on_gpus);
    for (int i = 0; i < launches; ++i) {
      next_input(i);
      instance_->launch(args_, {});
    }
    instance_->wait();
    expect_sums(when);
  }
  void replay_often(const std::vector<cuda::GraphExec>& graphs, int on_gpus,
                    const std::string& when) {
    int launches = launches_here(on_gpus);
    for (int i = 0; i < launches; ++i) {
      next_input(i);
      replay(graphs);
    }
    instance_->wait();
    expect_sums(when);
  }

  std::unique_ptr<GpuWorld> world_;
  SymmetricGpuMemory in_, sum_;
  std::unique_ptr<GpuInstance> instance_;
  Args args_;
  std::vector<double> expected_;  // [rank]: every element of its sums
};

// The protocol's assumption: what a queue does needs no SM. Copies within a device are measured
// only; EngineQueues does without them where a kernel may hold all SMs.
TEST_F(GpuEngines, CopiesGoOnWhileAKernelHoldsEverySm) {
  cuda::KernelImage image = cuda::compile_cuda(
      "extern \"C\" __global__ void hold(const volatile unsigned long long* word) {\n"
      "  unsigned long long begin, now;\n"
      "  asm volatile(\"mov.u64 %0, %globaltimer;\" : \"=l\"(begin));\n"
      "  do { asm volatile(\"mov.u64 %0, %globaltimer;\" : \"=l\"(now)); }\n"
      "  while (*word == 0 && now - begin < 2000000000ull);\n}\n",
      "hold.cu");
  const cuda::Device& here = world_->device(0);
  cuda::Kernel hold(cuda::Module(here, image.cubin, "hold"), "hold");
  auto shared = static_cast<std::size_t>(here.properties().shared_per_block_bytes);
  hold.set_max_dynamic_shared(shared);
  cuda::HostMappedMemory word(here, 64);
  cuda::Stream queue(here);
  CUdeviceptr a = in_.addresses()[0], b = sum_.addresses()[0], far = in_.addresses()[1];
  constexpr std::size_t kMega = 1 << 20;
  struct Case {
    const char* name;
    bool needed;
    std::function<void()> copy;
  };
  auto* host = static_cast<std::uint64_t*>(word.host());
  std::vector<Case> cases{{"8 bytes from the host", true, [&] { queue.upload(a, host + 4, 8); }},
                          {"8 bytes to a peer", true, [&] { queue.copy(far, a, 8); }},
                          {"8 bytes from a peer", true, [&] { queue.copy(a, far, 8); }},
                          {"1 MiB from a peer", true, [&] { queue.copy(a, far, kMega); }},
                          {"1 MiB to a peer", true, [&] { queue.copy(far, a, kMega); }},
                          {"rows from a peer", true,
                           [&] {
                             queue.copy_rows({.to = a,
                                              .from = far,
                                              .to_pitch = 4096,
                                              .from_pitch = 4096,
                                              .row_bytes = 1024,
                                              .rows = 256});
                           }},
                          {"8 bytes within the device", false, [&] { queue.copy(b, a, 8); }},
                          {"1 MiB within the device", false, [&] { queue.copy(b, a, kMega); }}};
  for (const Case& c : cases) {
    c.copy();  // the driver's first call of a kind may allocate
    queue.synchronize();
    *static_cast<volatile std::uint64_t*>(host) = 0;
    CUdeviceptr address = word.address();
    void* args[] = {&address};
    hold.launch(world_->stream(0),
                {.grid = {static_cast<unsigned>(here.properties().num_sms)},
                 .block = {1024},
                 .dynamic_shared_bytes = shared},
                args);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    auto begin = Clock::now();
    c.copy();
    while (!queue.idle() && Clock::now() - begin < std::chrono::milliseconds(500)) {
    }
    double us = std::chrono::duration<double, std::micro>(Clock::now() - begin).count();
    bool through = queue.idle();
    *static_cast<volatile std::uint64_t*>(host) = 1;
    world_->synchronize();
    queue.synchronize();
    fmt::print("{}: {}\n", c.name, through ? fmt::format("{:.1f} us", us) : "waits for an SM");
    if (c.needed) {
      EXPECT_TRUE(through) << c.name;
    }
  }
}

TEST_F(GpuEngines, DataComesBeforeItsSignalInEveryLaunch) {
  start(Way::kPull);
  launch_often(2000, "launched");
}

// With six launches in a graph, one rank's queue waited for ever for kernels that waited for it
// (docs/decisions/0008-own-signals-come-from-peers.md).
TEST_F(GpuEngines, FetchesAreRefusedInGraphs) {
  start(Way::kPull);
  launch_often(10, "launched");
  const cuda::Stream& stream = world_->stream(0);
  stream.begin_capture();
  EXPECT_THROW(instance_->launch(args_, {}, 0, stream), UserError);
  stream.end_capture();
  launch_often(10, "launched after a refused capture");
}

// Kernels that hold every SM wait for queues, and one rank may be a launch ahead of the other. On
// simulated GPUs the products of 132 SMs take minutes, fewer than on GPUs as they are here;
// STRETTO_SIMULATED_SMS makes them less.
TEST_F(GpuEngines, GraphsOfLaunchesThatHoldEverySm) {
  int num_sms = world_->device(0).properties().num_sms;
  const std::int64_t k = is_simulated() ? 128 : 512;
  GpuInstance instance(*world_, prove(lower(multiply(num_sms, k)), {.gpu = world_->target()}));
  const Program& p = instance.program();
  Args args;
  std::map<std::string, SymmetricGpuMemory> memory;
  args.tensors.resize(p.tensors.size());
  for (const char* name : {"in", "b", "c"}) {
    auto at = static_cast<std::size_t>(p.find_tensor(name));
    std::size_t bytes = storage_bytes(p, static_cast<int>(at));
    args.tensors[at].on = (memory[name] = world_->allocate(bytes)).addresses();
    for (int r = 0; r < kRanks; ++r) {  // pairs of ones
      world_->stream(r).fill_words(args.tensors[at].on[static_cast<std::size_t>(r)], 0x3f803f80,
                                   bytes / 4);
    }
  }
  world_->synchronize();
  for (int launches : {1, 2, 4, 6, 12}) {
    std::vector<cuda::GraphExec> graphs = capture([&](int r) {
      for (int i = 0; i < launches; ++i) instance.launch(args, {}, r, world_->stream(r));
    });
    for (int n = 0; n < (is_simulated() ? 2 : 2400 / launches); ++n) replay(graphs);
    ASSERT_NO_THROW(instance.wait()) << launches << " in a graph";
  }
  auto c = static_cast<std::size_t>(p.find_tensor("c"));
  for (int r = 0; r < kRanks; ++r) {
    std::vector<std::uint32_t> products(memory["c"].on[static_cast<std::size_t>(r)].bytes() / 4);
    world_->stream(r).download(products.data(), args.tensors[c].on[static_cast<std::size_t>(r)],
                               products.size() * 4);
    world_->stream(r).synchronize();
    // Pairs of k, the sum of so many ones.
    EXPECT_EQ(std::count(products.begin(), products.end(), k == 512 ? 0x44004400u : 0x43004300u),
              static_cast<std::ptrdiff_t>(products.size()));
  }
}

TEST_F(GpuEngines, CopiesWithinARankAreRefusedInGraphs) {
  start(broadcast());
  for (int r = 0; r < kRanks; ++r) fill(1, r);
  for (int i = 0; i < 20; ++i) instance_->launch(args_, {});
  instance_->wait();
  const cuda::Stream& stream = world_->stream(0);
  stream.begin_capture();
  EXPECT_THROW(instance_->launch(args_, {}, 0, stream), UserError);
  stream.end_capture();
  clear();
  instance_->launch(args_, {});
  instance_->wait();
  expected_.assign(kRanks, element(1, 0));
  expect_sums("copied");
}

TEST_F(GpuEngines, QueuesThatWaitForTheirKernel) {
  start(Way::kSend);
  launch_often(2000, "launched");
  std::vector<cuda::GraphExec> graphs;
  try {
    graphs = capture();
  } catch (const Error& e) {
    GTEST_SKIP() << "not captured: " << e.what();
  }
  clear();
  replay_often(graphs, 2000, "replayed");
}

// What needs no other rank does not wait for the gate, which waits for one.
TEST_F(GpuEngines, RolesBeginBesideTheGate) {
  start(keep_and_send());
  for (int i = 0; i < 3; ++i) {
    for (int r = 0; r < kRanks; ++r) fill(i, r);
    world_->synchronize();
    instance_->launch(args_, {}, 0, world_->stream(0));
    cuda::Stream beside(world_->device(0));
    float last = 0;
    auto patience = Clock::now() + std::chrono::seconds(1);
    while (last != element(i, 0) && Clock::now() < patience) {
      beside.download(&last, sum_.addresses()[0] + kBytes - 4, 4);
      beside.synchronize();
    }
    EXPECT_EQ(last, element(i, 0)) << "launch " << i << ": rank 0 waited for rank 1";
    instance_->launch(args_, {}, 1, world_->stream(1));
    instance_->wait();
    for (int r = 0; r < kRanks; ++r) expected_[static_cast<std::size_t>(r)] = element(i, r);
    expect_sums("kept");
  }
}

// Copies are spans of their roles' workers between what they wait for and what waits for them.
TEST_F(GpuEngines, CopiesAndSignalsAreRecorded) {
  constexpr int kLaunches = 3;
  start(Way::kSend);  // its arguments
  Proved compiled = prove(lower(accumulate(Way::kSend)));
  GpuInstance recorded(*world_, compiled, generate(compiled.lowered(), {.record = true}));
  auto launch = [&](int times) {
    for (int i = 0; i < times; ++i) recorded.launch(args_, {});
    recorded.wait();
  };
  launch(2);  // not recorded
  recorded.set_recording(true);
  const std::int64_t before_ns = Recorder::now_ns();
  launch(kLaunches);
  const std::int64_t after_ns = Recorder::now_ns();
  Recorder recorder(kRanks);
  const std::int64_t error_ns = recorded.collect(recorder);
  recorded.set_recording(false);
  launch(1);
  Recorder nothing(kRanks);
  recorded.collect(nothing);
  EXPECT_TRUE(nothing.spans().empty());

  std::map<std::int64_t, int> copies;  // by epoch
  for (const Span& span : recorder.spans()) {
    if (span.kind != SpanKind::kCopy) continue;
    EXPECT_STREQ(span.role, "send");
    EXPECT_EQ(span.worker, span.tile % 2);
    EXPECT_LE(before_ns - error_ns, span.begin_ns);
    EXPECT_LE(span.begin_ns, span.end_ns);
    EXPECT_LE(span.end_ns, after_ns + error_ns);
    ++copies[span.epoch];
  }
  ASSERT_EQ(copies.size(), static_cast<std::size_t>(kLaunches));
  EXPECT_EQ(copies.begin()->first, 2) << "after those that were not recorded";
  for (const auto& [epoch, count] : copies) EXPECT_EQ(count, kRanks * kChunks) << epoch;
  EXPECT_EQ(recorder.num_dropped(), 0);
}

TEST_F(GpuEngines, ARankThatDoesNotComeIsNamedAndTheQueuesRecover) {
  for (Way way : {Way::kPull, Way::kSend}) {
    start(way);
    launch_often(3, "before");
    instance_->launch(args_, {}, 0, world_->stream(0));  // rank 1 never comes
    try {
      instance_->wait();
      ADD_FAILURE() << "no fault";
    } catch (const Fault& fault) {
      EXPECT_EQ(fault.record().rank, 0) << fault.what();
      // The gate's wait for rank 1, or one beside it for what rank 1 would send.
      const std::string signal = fault.record().signal;
      EXPECT_TRUE(signal == "ready" || signal == "arrived") << fault.what();
    }
    world_->clear_fault();
    instance_->recover();
    clear();
    launch_often(20, "recovered");
  }
}

}  // namespace
}  // namespace stretto::gpu_engine_test
