// Devices, streams, modules and graphs on a GPU, each checked through its effect on memory; and the
// errors of a machine without one.
#include "stretto/runtime/cuda/device.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <random>
#include <type_traits>
#include <vector>

#include "stretto/base/errors.h"
#include "stretto/base/test_seed.h"
#include "stretto/runtime/cuda/allocation.h"
#include "stretto/runtime/cuda/module.h"
#include "stretto/runtime/cuda/nvrtc.h"
#include "stretto/runtime/cuda/stream.h"
#include "stretto/runtime/cuda/tensor_map.h"

namespace stretto::cuda {
namespace {

static_assert(!std::is_copy_constructible_v<Device> && std::is_move_constructible_v<Device>);
static_assert(!std::is_copy_constructible_v<DeviceMemory>);
static_assert(std::is_nothrow_move_constructible_v<DeviceMemory>);
static_assert(!std::is_copy_constructible_v<HostMappedMemory>);
static_assert(!std::is_copy_constructible_v<Stream> && !std::is_copy_constructible_v<Event>);
static_assert(!std::is_copy_constructible_v<GraphExec>);

TEST(WithoutADriver, EveryUseSaysWhy) {
  if (has_driver()) GTEST_SKIP() << "this machine has a driver";
  EXPECT_EQ(num_devices(), 0);
  EXPECT_THROW(driver(), DeviceError);
  try {
    Device device(0);
    ADD_FAILURE() << "a device without a driver";
  } catch (const DeviceError& e) {
    std::string what = e.what();
    EXPECT_TRUE(what.find("no CUDA driver: libcuda.so.1 not found") != std::string::npos ||
                what.find("the CUDA driver") != std::string::npos)
        << what;
  }
  EXPECT_THROW(encode_tensor_map({.dtype = DType::kF32, .shape = {4}, .box = {4}}), DeviceError);
}

TEST(NoMemory, TheDeviceWhatIsAskedForAndWhatIsLeftAreNamed) {
  DeviceProperties h200;
  h200.ordinal = 2;
  h200.name = "NVIDIA H200";
  constexpr std::size_t kGib = std::size_t{1} << 30;
  EXPECT_EQ(
      no_memory_text(h200, 150 * kGib, {.free_bytes = 3 * kGib / 2, .total_bytes = 140 * kGib}),
      "GPU 2 (NVIDIA H200) has too little memory: 150.00 GiB are asked for (161061273600 "
      "bytes), 1.50 of 140.00 GiB are free");
}

constexpr const char* kKernels = R"(
extern "C" __global__ void add(unsigned* x, unsigned value, unsigned n) {
  unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) x[i] += value;
}
// x[block] = the block's rank in its cluster + 100 * blocks of the cluster
extern "C" __global__ void cluster_ranks(unsigned* x) {
  unsigned rank, size;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  asm volatile("mov.u32 %0, %%cluster_nctarank;" : "=r"(size));
  if (threadIdx.x == 0) x[blockIdx.x] = rank + 100 * size;
}
// x[block] = 1 if all blocks arrived while it waited: they were resident together.
extern "C" __global__ void meet(unsigned* count, unsigned* x) {
  if (threadIdx.x != 0) return;
  atomicAdd(count, 1u);
  for (int polls = 0; polls < 10000000; ++polls) {
    if (*(volatile unsigned*)count == gridDim.x) break;
  }
  x[blockIdx.x] = *(volatile unsigned*)count == gridDim.x;
}
extern "C" __global__ void use_shared(unsigned* x, unsigned words) {
  extern __shared__ unsigned s[];
  for (unsigned i = threadIdx.x; i < words; i += blockDim.x) s[i] = i;
  __syncthreads();
  if (threadIdx.x == 0) x[0] = s[words - 1];
}
struct alignas(64) Map { unsigned long long opaque[16]; };
// Copies one box of 8 x 16 words at (row, column) through the copy engine to x.
extern "C" __global__ void copy_box(const __grid_constant__ Map map, int row, int column,
                                    unsigned* x) {
  __shared__ alignas(128) unsigned box[8 * 16];
  __shared__ alignas(8) unsigned long long full;
  unsigned to = (unsigned)__cvta_generic_to_shared(box);
  unsigned barrier = (unsigned)__cvta_generic_to_shared(&full);
  if (threadIdx.x == 0) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(barrier));
    asm volatile("fence.mbarrier_init.release.cluster;");
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], 512;" ::"r"(barrier));
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
        "[%0], [%1, {%2, %3}], [%4];" ::"r"(to), "l"(&map), "r"(column), "r"(row), "r"(barrier)
        : "memory");
  }
  __syncthreads();
  asm volatile(
      "{ .reg .pred p; again: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], 0; "
      "@!p bra again; }" ::"r"(barrier) : "memory");
  x[threadIdx.x] = box[threadIdx.x];
}
)";

KernelImage compile() { return compile_cuda(kKernels, "device_test.cu", {.use_cache = false}); }

TEST(GpuTestKernels, Compile) {
  if (!has_nvrtc()) GTEST_SKIP() << "no NVRTC";
  KernelImage image = compile();
  EXPECT_EQ(kernel_reports(image.log).size(), 5u) << image.log;
}

// Skips where there is no GPU of Hopper's kind or no NVRTC.
class GpuTest : public testing::Test {
 protected:
  void SetUp() override {
    if (num_devices() == 0) GTEST_SKIP() << "no GPU";
    if (!has_nvrtc()) GTEST_SKIP() << "no NVRTC";
    device_.emplace(0);
    if (device_->properties().cc_major != 9) GTEST_SKIP() << device_->properties().to_string();
    stream_.emplace(*device_);
  }

  Kernel kernel(const std::string& symbol) {
    if (!module_) module_.emplace(*device_, compile().cubin, "test");
    return Kernel(*module_, symbol);
  }
  std::vector<unsigned> read(const DeviceMemory& memory) {
    std::vector<unsigned> words(memory.bytes() / sizeof(unsigned));
    stream_->download(words.data(), memory.address(), memory.bytes());
    stream_->synchronize();
    return words;
  }

  std::optional<Device> device_;
  std::optional<Stream> stream_;
  std::optional<Module> module_;
};

TEST_F(GpuTest, PropertiesAreThoseOfAHopper) {
  const DeviceProperties& p = device_->properties();
  SCOPED_TRACE(p.to_string());
  EXPECT_GE(p.num_sms, 1);
  EXPECT_EQ(p.shared_per_block_bytes, 227 * 1024);
  EXPECT_EQ(p.registers_per_sm, 65536);
  EXPECT_TRUE(p.cooperative_launch && p.clusters && p.tensor_maps && p.stream_memory_operations);
  MemoryInfo memory = device_->memory();
  EXPECT_LE(memory.free_bytes, memory.total_bytes);
  EXPECT_THROW(Device{num_devices()}, DeviceError);
  EXPECT_THROW(DeviceMemory(*device_, std::size_t{1} << 50), DeviceError);
}

TEST_F(GpuTest, CopiesAndFills) {
  std::uint64_t seed = test_seed();
  SCOPED_TRACE(seed);
  std::mt19937 random(static_cast<unsigned>(seed));
  std::vector<unsigned> words(1000);
  for (unsigned& word : words) word = random();
  DeviceMemory a(*device_, words.size() * 4), b(*device_, words.size() * 4);
  stream_->fill_words(b.address(), 0xdeadbeef, words.size());
  stream_->upload(a.address(), words.data(), a.bytes());
  stream_->copy(b.address() + 400, a.address() + 400, 1200);
  stream_->fill_bytes(b.address() + 4, 0x11, 4);
  std::vector<unsigned> expected(words.size(), 0xdeadbeef);
  std::copy(words.begin() + 100, words.begin() + 400, expected.begin() + 100);
  expected[1] = 0x11111111;
  EXPECT_EQ(read(b), expected);
}

TEST_F(GpuTest, ACapturedGraphRepeatsTheLaunch) {
  Kernel add = kernel("add");
  EXPECT_GT(add.attributes().registers, 0);
  EXPECT_EQ(add.attributes().local_bytes, 0);
  EXPECT_GE(add.max_blocks_per_sm(128, 0), 1);
  DeviceMemory x(*device_, 1000 * 4);
  stream_->fill_words(x.address(), 5, 1000);
  CUdeviceptr address = x.address();
  unsigned value = 3, n = 999;
  void* args[] = {&address, &value, &n};
  stream_->begin_capture();
  add.launch(*stream_, {.grid = {8}, .block = {128}}, args);
  GraphExec graph = stream_->end_capture();
  value = 1000;  // copied when it was captured
  for (int i = 0; i < 4; ++i) graph.launch(*stream_);
  std::vector<unsigned> expected(1000, 5 + 4 * 3);
  expected[999] = 5;
  EXPECT_EQ(read(x), expected);
}

TEST_F(GpuTest, ClustersAndCooperativeLaunches) {
  Kernel ranks = kernel("cluster_ranks");
  DeviceMemory x(*device_, 8 * 4);
  CUdeviceptr address = x.address();
  void* args[] = {&address};
  LaunchConfig clusters{.grid = {8}, .block = {32}, .cluster = {4}};
  EXPECT_GE(ranks.max_clusters(clusters), 1);
  ranks.launch(*stream_, clusters, args);
  EXPECT_EQ(read(x), (std::vector<unsigned>{400, 401, 402, 403, 400, 401, 402, 403}));

  Kernel meet = kernel("meet");
  auto blocks = static_cast<unsigned>(device_->properties().num_sms);
  DeviceMemory met(*device_, blocks * 4), count(*device_, 4);
  stream_->fill_words(count.address(), 0, 1);
  stream_->fill_words(met.address(), 0, blocks);
  CUdeviceptr count_address = count.address(), met_address = met.address();
  void* meet_args[] = {&count_address, &met_address};
  meet.launch(*stream_, {.grid = {blocks}, .block = {32}, .cooperative = true}, meet_args);
  EXPECT_EQ(read(met), std::vector<unsigned>(blocks, 1));
  int resident = meet.max_blocks_per_sm(32, 0) * device_->properties().num_sms;
  LaunchConfig too_many{.grid = {static_cast<unsigned>(resident) + 1}, .block = {32}};
  too_many.cooperative = true;
  EXPECT_THROW(meet.launch(*stream_, too_many, meet_args), DeviceError) << "not resident together";
}

TEST_F(GpuTest, AllOfSharedMemory) {
  Kernel use = kernel("use_shared");
  auto bytes = static_cast<std::size_t>(device_->properties().shared_per_block_bytes);
  DeviceMemory x(*device_, 4);
  CUdeviceptr address = x.address();
  auto words = static_cast<unsigned>(bytes / 4);
  void* args[] = {&address, &words};
  LaunchConfig launch{.grid = {1}, .block = {256}, .dynamic_shared_bytes = bytes};
  EXPECT_THROW(use.launch(*stream_, launch, args), DeviceError) << "before it is allowed";
  use.set_max_dynamic_shared(bytes);
  use.launch(*stream_, launch, args);
  EXPECT_EQ(read(x), std::vector<unsigned>{words - 1});
}

TEST_F(GpuTest, AStreamWaitsForAWord) {
  HostMappedMemory host(*device_, 16);
  auto* words = static_cast<volatile std::uint64_t*>(host.host());
  EXPECT_EQ(words[0], 0u);
  DeviceMemory word(*device_, 8);
  stream_->fill_bytes(word.address(), 0, 8);
  stream_->synchronize();
  Stream other(*device_);
  Event start(*device_, Event::Timing::kOn), end(*device_, Event::Timing::kOn);
  other.record(start);
  other.wait_value(word.address(), 7, WaitUntil::kAtLeast);
  other.write_value(host.address() + 8, 42);
  other.record(end);
  EXPECT_FALSE(end.ready());
  EXPECT_FALSE(other.idle());
  EXPECT_EQ(words[1], 0u);
  stream_->write_value(word.address(), 8);
  other.synchronize();
  EXPECT_EQ(words[1], 42u);
  EXPECT_TRUE(end.ready());
  EXPECT_GE(elapsed_ms(start, end), 0);
}

TEST_F(GpuTest, ATensorMapNamesABox) {
  constexpr int kRows = 37, kColumns = 64;
  std::vector<unsigned> matrix(kRows * kColumns);
  std::iota(matrix.begin(), matrix.end(), 1u);
  DeviceMemory source(*device_, matrix.size() * 4), x(*device_, 8 * 16 * 4);
  stream_->upload(source.address(), matrix.data(), source.bytes());
  TensorMap map = encode_tensor_map({.dtype = DType::kI32,
                                     .address = source.address(),
                                     .shape = {kRows, kColumns},
                                     .box = {8, 16}});
  Kernel copy = kernel("copy_box");
  CUdeviceptr address = x.address();
  int row = 32, column = 52;  // reaches over both edges
  void* args[] = {&map, &row, &column, &address};
  copy.launch(*stream_, {.grid = {1}, .block = {128}}, args);
  std::vector<unsigned> box = read(x);
  for (int r = 0; r < 8; ++r) {
    for (int c = 0; c < 16; ++c) {
      bool inside = row + r < kRows && column + c < kColumns;
      unsigned expected = inside ? static_cast<unsigned>((row + r) * kColumns + column + c + 1) : 0;
      EXPECT_EQ(box[static_cast<std::size_t>(r * 16 + c)], expected) << r << ", " << c;
    }
  }
}

TEST_F(GpuTest, PeersCopyToEachOther) {
  if (num_devices() < 2) GTEST_SKIP() << "one GPU";
  Device peer(1);
  if (!device_->can_access(peer)) GTEST_SKIP() << "no peer access";
  device_->enable_peer_access(peer);
  device_->enable_peer_access(peer);
  DeviceMemory here(*device_, 64), there(peer, 64);
  stream_->fill_words(here.address(), 17, 16);
  stream_->copy(there.address(), here.address(), 64);
  stream_->fill_words(here.address(), 0, 16);
  stream_->copy_peer(here.address(), *device_, there.address(), peer, 64);
  EXPECT_EQ(read(here), std::vector<unsigned>(16, 17));
}

TEST_F(GpuTest, MemoryThatIsNotThereIsTold) {
  std::size_t total = device_->memory().total_bytes;
  try {
    DeviceMemory memory(*device_, total + (std::size_t{1} << 30));
    ADD_FAILURE() << "more than there is";
  } catch (const DeviceError& e) {
    std::string what = e.what();
    EXPECT_NE(what.find("has too little memory"), std::string::npos) << what;
    EXPECT_NE(what.find(std::to_string(total + (std::size_t{1} << 30)) + " bytes"),
              std::string::npos)
        << what;
  }
  DeviceMemory some(*device_, 1 << 20);  // the device goes on
  EXPECT_NE(some.address(), 0u);
}

TEST_F(GpuTest, AMissingKernelIsNamed) {
  try {
    kernel("no_such_kernel");
    ADD_FAILURE() << "found";
  } catch (const DeviceError& e) {
    EXPECT_NE(std::string(e.what()).find("no_such_kernel"), std::string::npos) << e.what();
  }
}

}  // namespace
}  // namespace stretto::cuda
