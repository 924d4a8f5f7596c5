// Kernels on the simulated GPU: what they compute, and what it sees that no result shows. Run with
// the simulated driver in the loader's path (CMakeLists.txt).
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <vector>

#include "stretto/base/errors.h"
#include "stretto/device/device_sources.h"
#include "stretto/device/wgmma_text.h"
#include "stretto/runtime/cuda/allocation.h"
#include "stretto/runtime/cuda/module.h"
#include "stretto/runtime/cuda/nvrtc.h"
#include "stretto/runtime/cuda/tensor_map.h"

namespace stretto::cuda {
namespace {

constexpr const char* kHeaders =
    "#include \"stretto/device/sm90/dot.h\"\n#include \"stretto/device/sm90/store.h\"\n";

class Simulator : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(has_driver()) << "run with the simulated driver";
    device_.emplace(0);
    ASSERT_EQ(device_->properties().name, "simulated Hopper");
    stream_.emplace(*device_);
    out_.emplace(*device_, 4 * kWords);
  }

  Kernel compiled(const std::string& body, const std::string& before = "") const {
    std::string text = kHeaders + before +
                       "extern \"C\" __global__ void __launch_bounds__(256, 1) k(u32* out) {\n"
                       "extern __shared__ __align__(1024) u8 smem[];\n" +
                       body + "\n}\n";
    return Kernel(Module(*device_, compile_cuda(expand_includes(text), "k.cu").cubin, "k"), "k");
  }
  // A map of [64, 100] floats at `out`, as `map` in the body.
  static constexpr const char* kMapOfOut =
      "[[maybe_unused]] auto* map = reinterpret_cast<const TensorMap*>(out + 8192);\n";
  void put_map() const {
    TensorMap map = encode_tensor_map({.dtype = DType::kF32,
                                       .address = out_->address(),
                                       .shape = {1, 64, 100},
                                       .box = {1, 8, 8},
                                       .swizzle = Swizzle::k32B});
    stream_->upload(out_->address() + 4 * 8192, &map, sizeof(map));
  }
  void launch(const Kernel& kernel, unsigned blocks, unsigned threads, bool early = false) const {
    CUdeviceptr out = out_->address();
    void* arguments[] = {&out};
    kernel.launch(*stream_,
                  {.grid = {blocks},
                   .block = {threads},
                   .dynamic_shared_bytes = 65536,
                   .programmatic_serialization = early},
                  arguments);
  }
  std::vector<std::uint32_t> result() const {
    std::vector<std::uint32_t> words(kWords);
    stream_->download(words.data(), out_->address(), 4 * kWords);
    stream_->synchronize();
    return words;
  }
  std::vector<std::uint32_t> run(const std::string& body, unsigned blocks, unsigned threads) const {
    stream_->fill_bytes(out_->address(), 0, 4 * kWords);
    put_map();
    launch(compiled(kMapOfOut + body), blocks, threads);
    return result();
  }
  // In a process of its own: a violation ends all work of a process.
  void fail(const std::string& body, unsigned threads) const {
    try {
      run(body, 1, threads);
    } catch (const DeviceError& e) {
      std::fprintf(stderr, "%s\n", e.what());
      std::exit(3);
    }
    std::exit(0);
  }

  static constexpr std::size_t kWords = 64 * 256;
  std::optional<Device> device_;
  std::optional<Stream> stream_;
  std::optional<DeviceMemory> out_;
};
using SimulatorDeathTest = Simulator;

TEST_F(Simulator, ThreadsBlocksAndShuffles) {
  std::vector<std::uint32_t> out =
      run("u32 own = blockIdx.x * blockDim.x + threadIdx.x;\n"
          "u32 sum = own;\n"
          "for (int lanes = 16; lanes > 0; lanes /= 2) sum += __shfl_xor_sync(~0u, sum, lanes);\n"
          "reinterpret_cast<u32*>(smem)[threadIdx.x] = sum;\n"
          "__syncthreads();\n"
          "atomicAdd(out, 1u);\n"
          "out[1 + own] = reinterpret_cast<u32*>(smem)[(threadIdx.x + 32) % blockDim.x];",
          5, 96);
  EXPECT_EQ(out[0], 5u * 96);
  for (std::uint32_t own = 0; own < 5 * 96; ++own) {
    std::uint32_t warp = own / 96 * 96 + (own % 96 + 32) % 96 / 32 * 32;
    EXPECT_EQ(out[1 + own], 32 * warp + 31 * 16) << own;
  }
}

// Past the last byte of an allocation, or before its first, is nobody's memory.
TEST_F(SimulatorDeathTest, MemoryBesideAnAllocationIsNobodys) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(fail("out[0] = out[16383] = 7;", 1), testing::ExitedWithCode(0), "");
  EXPECT_EXIT(fail("out[16384] = 7;", 1), testing::KilledBySignal(SIGSEGV), "");
  EXPECT_EXIT(fail("out[-1] = 7;", 1), testing::KilledBySignal(SIGSEGV), "");
  EXPECT_EXIT(fail("out[1] = out[16384];", 1), testing::KilledBySignal(SIGSEGV), "");
}

// Its size in pages or not, it ends where nobody's memory begins, but for its alignment.
TEST_F(Simulator, AllocationsOfAllSizesHoldTheirBytes) {
  for (std::size_t bytes : {1, 511, 512, 513, 4095, 4096, 4097, 70'001}) {
    DeviceMemory memory(*device_, bytes);
    EXPECT_EQ(memory.address() % 512, 0u) << bytes;
    EXPECT_EQ((memory.address() + (bytes + 511) / 512 * 512) % 4096, 0u) << bytes;
    std::vector<unsigned char> in(bytes, 0x5a), out(bytes);
    stream_->upload(memory.address(), in.data(), bytes);
    stream_->download(out.data(), memory.address(), bytes);
    stream_->synchronize();
    EXPECT_EQ(in, out) << bytes;
  }
}

// More threads that poll than a slice has switches keep nobody from going on that is held back.
TEST_F(Simulator, ManyWhoPollStarveNobody) {
  std::vector<std::uint32_t> out =
      run("u64* word = reinterpret_cast<u64*>(out);\n"
          "if (blockIdx.x == 15) {\n"
          "  __syncthreads();\n"
          "  if (threadIdx.x % 64 == 0) add_release_sys(word, 1);\n"
          "  return;\n"
          "}\n"
          "const u64 begin = global_timer_ns();\n"
          "while (load_relaxed_sys(word) < 4 && global_timer_ns() - begin < 1'000'000'000) {}\n"
          "if (load_relaxed_sys(word) < 4) atomicAdd(out + 2, 1u);",
          16, 256);
  EXPECT_EQ(out[0], 4u);
  EXPECT_EQ(out[2], 0u) << "have aborted";
}

TEST_F(Simulator, AnyThreadOfABlock) {
  std::vector<std::uint32_t> out =
      run("out[threadIdx.x] = __syncthreads_or(threadIdx.x == 70);\n"
          "out[96 + threadIdx.x] = __syncthreads_or(threadIdx.x > 96);",
          1, 96);
  for (std::size_t t = 0; t < 96; ++t) EXPECT_EQ(out[t] != 0 && out[96 + t] == 0, true) << t;
}

// 512 threads wait for 3 ms for what does not come. The abort word is known by its address; who
// reads it counts. When all did, 200 us after their first poll, launches in a row took up to half
// as long again (docs/decisions/0009-waits-leave-host-memory-alone.md).
TEST_F(Simulator, OneThreadOfADeviceLooksAtTheAbortWord) {
  const std::string counting =
      "STRETTO_DEVICE u64 counted_load(const u64* p) {\n"
      "  u64 at = reinterpret_cast<u64>(p);\n"
      "  if (at % 64 == 8) atomicAdd(reinterpret_cast<u32*>(at - 8), 1u);\n"
      "  return load_relaxed_sys(p);\n}\n"
      "#define load_relaxed_sys(p) counted_load(p)\n"
      "#include \"stretto/device/sm90/signal.h\"\n";
  const std::string body =
      "u64* words = reinterpret_cast<u64*>(out);\n"
      "Watch w{words + 1, reinterpret_cast<DeviceFault*>(words + 16), 3'000'000, 7, words + 2};\n"
      "wait_acquire_sys(words + 8, 1, w, 5, 0);\n"
      "atomicAdd(out + 64, 1u);";
  stream_->fill_bytes(out_->address(), 0, 4 * kWords);
  launch(compiled(body, counting), 2, 256);
  std::vector<std::uint32_t> out = result();
  EXPECT_EQ(out[64], 512u) << "all have aborted";
  EXPECT_GE(out[0], 1u);
  EXPECT_LE(out[0], 8u) << "looks at the abort word, one a millisecond";
  EXPECT_EQ(out[2], 1u) << "it is raised";
  EXPECT_EQ(out[4], 1u) << "and the own device knows";
}

// 128 threads: D[64, n] = A[64, 64] B, with B's rows along K or along N.
void expect_products(const std::vector<std::uint32_t>& out, int n) {
  auto a = [](int r, int k) { return static_cast<double>((r * 7 + k * 3) % 11 - 5); };
  auto b = [](int k, int c) { return static_cast<double>((k * 5 + c * 13) % 9 - 4); };
  for (int r = 0; r < 64; ++r) {
    for (int c = 0; c < n; ++c) {
      double sum = 0;
      for (int k = 0; k < 64; ++k) sum += a(r, k) * b(k, c);
      float got = 0;
      std::memcpy(&got, &out[static_cast<std::size_t>(r * n + c)], 4);
      ASSERT_EQ(got, static_cast<float>(sum)) << r << ", " << c;
    }
  }
}

TEST_F(Simulator, ProductsFromSwizzledSlots) {
  for (int n : {8, 24, 64, 256}) {
    for (bool rows_along_n : {true, false}) {
      if (!rows_along_n && n % 64 != 0) continue;  // a chunk of columns is 128 bytes
      std::string slot = rows_along_n ? fmt::format("SmemTile<bf16, {}, 64, 128>", n)
                                      : fmt::format("SmemTile<bf16, 64, {}, 128>", n);
      std::string body = fmt::format(
          "using A = SmemTile<bf16, 64, 64, 128>; using B = {0};\n"
          "A a{{smem}}; B b{{smem + 8192}};\n"
          "for (int i = threadIdx.x; i < 64 * 64; i += 128)\n"
          "  a.at(i / 64, i % 64) = from_float<bf16>(float((i / 64 * 7 + i % 64 * 3) % 11 - 5));\n"
          "for (int i = threadIdx.x; i < 64 * {1}; i += 128) {{\n"
          "  int k = i / {1}, c = i % {1};\n"
          "  ({2} ? b.at(c, k) : b.at(k, c)) =\n"
          "      from_float<bf16>(float((k * 5 + c * 13) % 9 - 4));\n"
          "}}\n"
          "fence_proxy_async_shared();\n__syncthreads();\n"
          "Team team{{threadIdx.x, 1}};\n"
          "using L = MmaLayout<64, {1}, 1>;\n"
          "Tile<float, L::kRowSlots, L::kColSlots> sum;\n"
          "dot_async<{1}, 64, true>(sum, Operand<A, false>{{a}}, Operand<B, {2}>{{b}},\n"
          "                         origin_of(smem, team));\n"
          "wgmma_wait<0>();\n"
          "for (int i = 0; i < L::kRowSlots; ++i)\n"
          "  for (int j = 0; j < L::kColSlots; ++j)\n"
          "    out[L::row(team, i) * {1} + L::col(team, j)] = __float_as_uint(sum.x[i][j]);",
          slot, n, rows_along_n);
      SCOPED_TRACE(slot);
      Kernel kernel = compiled(body, wgmma_text(WgmmaType::kBF16, n));
      launch(kernel, 1, 128);
      expect_products(result(), n);
    }
  }
}

// A copy that nobody waits for has happened in some runs and in others not.
TEST_F(Simulator, WhatIsNotWaitedForComesAtAnyTime) {
  Kernel kernel = compiled(
      "u64* bar = reinterpret_cast<u64*>(smem);\n"
      "u32* to = reinterpret_cast<u32*>(smem + 1024);\n"
      "if (threadIdx.x == 0) mbarrier_init(bar, 32);\n"
      "__syncthreads();\n"
      "to[threadIdx.x] = 5;\n"
      "copy_async<4>(to + threadIdx.x, out + 64 + threadIdx.x, 4);\n"
      "mbarrier_arrive_after_copies(bar);\n"
      "__syncthreads();\n"
      "out[threadIdx.x] = to[threadIdx.x];\n"
      "mbarrier_wait_acquire_cta(bar, 0);\n"
      "out[32 + threadIdx.x] = to[threadIdx.x];");
  bool early = false, late = false;
  for (int i = 0; i < 50; ++i) {
    stream_->fill_words(out_->address(), 7, kWords);
    launch(kernel, 1, 32);
    std::vector<std::uint32_t> out = result();
    for (std::size_t t = 0; t < 32; ++t) {
      early |= out[t] == 7;
      late |= out[t] == 5;
      EXPECT_EQ(out[32 + t], 7u);
    }
  }
  EXPECT_TRUE(early);
  EXPECT_TRUE(late);
}

TEST_F(Simulator, ALaunchThatStartsEarlySeesTheOneBeforeAfterItsWait) {
  Kernel first = compiled(
      "let_next_launch_start();\n"
      "for (int i = 0; i < 200; ++i) pause_ns(1);\n"
      "out[threadIdx.x] += 1;");
  Kernel second = compiled(
      "out[256 + threadIdx.x] = *(volatile u32*)(out + threadIdx.x);\n"
      "wait_for_previous_launch();\n"
      "out[512 + threadIdx.x] = *(volatile u32*)(out + threadIdx.x);");
  stream_->fill_bytes(out_->address(), 0, 4 * kWords);
  bool overlapped = false;
  for (std::uint32_t i = 1; i <= 10; ++i) {
    launch(first, 1, 64);
    launch(second, 1, 64, true);
    std::vector<std::uint32_t> out = result();
    for (std::size_t t = 0; t < 64; ++t) {
      overlapped |= out[256 + t] == i - 1;
      EXPECT_EQ(out[512 + t], i);
    }
  }
  EXPECT_TRUE(overlapped);
}

TEST_F(SimulatorDeathTest, ThreadsThatWaitForEachOtherAreNamed) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      fail("u64* bars = reinterpret_cast<u64*>(smem);\n"
           "if (threadIdx.x == 0) { mbarrier_init(bars, 1); mbarrier_init(bars + 1, 1); }\n"
           "__syncthreads();\n"
           "u32 warp = threadIdx.x / 32;\n"
           "mbarrier_wait_acquire_cta(bars + warp, 0);\n"
           "if (threadIdx.x % 32 == 0) mbarrier_arrive_release_cta(bars + 1 - warp);",
           64),
      ::testing::ExitedWithCode(3),
      "for ever.*32 threads from 0 to 31: the mbarrier at 0 .*32 threads from 32 to 63: the "
      "mbarrier at 8 ");
}

TEST_F(SimulatorDeathTest, WhatNoKernelMayDo) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(fail("u64* bar = reinterpret_cast<u64*>(smem);\n"
                   "if (threadIdx.x == 0) mbarrier_init(bar, 8);\n"
                   "__syncthreads();\n"
                   "if (threadIdx.x == 0) mbarrier_arrive_expect_tx(bar, 16);\n"
                   "mbarrier_arrive_release_cta(bar);",
                   32),
              ::testing::ExitedWithCode(3), "more arrive at the mbarrier");
  EXPECT_EXIT(fail("mbarrier_arrive_release_cta(reinterpret_cast<u64*>(smem) + 1);", 32),
              ::testing::ExitedWithCode(3), "no mbarrier at");
  EXPECT_EXIT(fail("if (threadIdx.x < 16) __syncwarp(); else __shfl_sync(~0u, 1, 0);", 32),
              ::testing::ExitedWithCode(3), "different instructions");
  EXPECT_EXIT(fail("named_barrier_sync(1, threadIdx.x < 32 ? 64 : 96);", 96),
              ::testing::ExitedWithCode(3), "barrier 1 of 64 and of 96|barrier 1 of 96 and of 64");
}

// Two warps hand over to each other; a third waits for something on their way, and then for more of
// it, as if they waited for it. It is there in time nearly always.
TEST_F(SimulatorDeathTest, WhoComesAPhaseTooLateIsFound) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  auto launches = [&] {
    Kernel kernel = compiled(
        "u64* bars = reinterpret_cast<u64*>(smem);\n"
        "u32 warp = threadIdx.x / 32;\n"
        "if (threadIdx.x < 3) mbarrier_init(bars + threadIdx.x, threadIdx.x < 2 ? 32 : 1);\n"
        "__syncthreads();\n"
        "for (int i = 0; warp < 2 && i < 40; ++i) {\n"
        "  if (warp == 1) mbarrier_wait_acquire_cta(bars, i % 2);\n"
        "  mbarrier_arrive_release_cta(bars + warp);\n"
        "  if (warp == 0) mbarrier_wait_acquire_cta(bars + 1, i % 2);\n"
        "  if (threadIdx.x == 0 && (i == 20 || i == 39)) mbarrier_arrive_release_cta(bars + 2);\n"
        "}\n"
        "if (threadIdx.x == 64) mbarrier_wait_acquire_cta(bars + 2, 0);");
    try {
      for (int i = 0; i < 100; ++i) launch(kernel, 1, 96);
      result();
    } catch (const DeviceError& e) {
      std::fprintf(stderr, "%s\n", e.what());
      std::exit(3);
    }
    std::exit(0);
  };
  EXPECT_EXIT(launches(), ::testing::ExitedWithCode(3),
              "threads from 64 to 64: the mbarrier at 16");
}

// Seen on an H100 and an H200.
TEST_F(SimulatorDeathTest, BoxesThatTmaDoesNotTake) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  auto load = [](int x, int to = 1024) {
    return fmt::format(
        "u64* bar = reinterpret_cast<u64*>(smem);\n"
        "mbarrier_init(bar, 1);\n"
        "mbarrier_arrive_expect_tx(bar, 256);\n"
        "tma_load_3d(smem + {}, map, bar, {}, 0, 0);\n"
        "mbarrier_wait_acquire_cta(bar, 0);",
        to, x);
  };
  auto store = [](int x, int y) {
    return fmt::format(
        "tma_store_3d(map, smem + 1024, {}, {}, 0);\ntma_store_commit();\ntma_store_wait<0>();", x,
        y);
  };
  for (int x : {-4, 0, 4, 96, 100}) {
    EXPECT_EXIT(fail(load(x), 1), ::testing::ExitedWithCode(0), "") << x;
  }
  for (int x : {-3, 1, 2, 6, 101}) {
    EXPECT_EXIT(fail(load(x), 1), ::testing::ExitedWithCode(3), "no multiple of 16") << x;
  }
  EXPECT_EXIT(fail(load(0, 1024 + 64), 1), ::testing::ExitedWithCode(3), "of shared memory");
  EXPECT_EXIT(fail(store(96, 60), 1), ::testing::ExitedWithCode(0), "");
  EXPECT_EXIT(fail(store(2, 0), 1), ::testing::ExitedWithCode(3), "no multiple of 16");
  EXPECT_EXIT(fail(store(0, -1), 1), ::testing::ExitedWithCode(3), "before the tensor");
}

// A process of its own, which has not asked the driver for anything yet.
[[noreturn]] void open_device(const char* variable, const char* value) {
  setenv(variable, value, 1);
  try {
    Device device(0);
  } catch (const DeviceError& e) {
    fmt::print(stderr, "{}\n", e.what());
    std::exit(3);
  }
  std::exit(0);
}

TEST(SimulatorEnvironmentDeathTest, SaysWhatItCannotRead) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  for (const char* gpus : {"x", "0", "-3", "2x", "65", "99999999999999999999"}) {
    EXPECT_EXIT(open_device("STRETTO_SIMULATED_GPUS", gpus), testing::ExitedWithCode(3),
                fmt::format("_GPUS is '{}': need a whole number from 1 to 64", gpus));
  }
  EXPECT_EXIT(open_device("STRETTO_SIMULATOR_SEED", "-1"), testing::ExitedWithCode(3),
              "STRETTO_SIMULATOR_SEED is '-1': need a whole number from 0 to");
  EXPECT_EXIT(open_device("STRETTO_SIMULATED_SMS", "133"), testing::ExitedWithCode(3),
              "STRETTO_SIMULATED_SMS is '133': need a whole number from 1 to 132");
  EXPECT_EXIT(open_device("STRETTO_SIMULATED_QUEUES", "0"), testing::ExitedWithCode(3),
              "STRETTO_SIMULATED_QUEUES is '0': need a whole number from 1 to 32");
  EXPECT_EXIT(open_device("STRETTO_SIMULATED_GPUS", "1"), testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace stretto::cuda
