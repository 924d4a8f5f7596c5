// Packets of columns and of wide rows arrive in every thread that computes with them: what goes
// wrong here gives an attention over several GPUs that divides by zero. Needs one GPU, whose rank
// sends to itself.
#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "stretto/base/test_seed.h"
#include "stretto/gpu/gpu_instance.h"
#include "stretto/lang/program_builder.h"
#include "stretto/runtime/cuda/driver.h"

namespace stretto::gpu_packets_test {
namespace {

constexpr std::int64_t kRows = 3;

// y = x divided by its last column, all of which came as packets.
Program divide(std::int64_t cols) {
  ProgramBuilder p("divide", 1);
  auto x = p.input("x", DType::kF32, {kRows, cols + 2});
  auto y = p.output("y", DType::kF32, {kRows, cols});
  auto inbox = p.buffer("inbox", DType::kF32, {kRows, cols + 2},
                        {.space = Space::kSymmetric, .num_slots = 2, .packet = true});
  p.role("divide", Resource::sms(1), p.range(1), [&](const Tile&) {
    auto part = [&](const TensorRef& t, std::int64_t col, std::int64_t width) {
      return t.tile({0, col}, kRows, width);
    };
    p.store_packet(part(inbox, 0, cols), p.load(part(x, 0, cols)));
    p.store_packet(part(inbox, cols + 1, 1), p.load(part(x, cols + 1, 1)));
    Value numerator = p.load_packet(part(inbox, 0, cols));
    Value denominator = p.load_packet(part(inbox, cols + 1, 1));
    p.store(part(y, 0, cols), numerator / denominator);
  });
  return p.finish();
}

TEST(GpuPackets, ColumnsReachEveryThreadOfARow) {
  if (!cuda::has_driver() || cuda::num_devices() < 1) GTEST_SKIP() << "needs a GPU";
  std::uint64_t seed = test_seed();
  SCOPED_TRACE("STRETTO_TEST_SEED=" + std::to_string(seed));
  std::mt19937_64 random(seed);
  std::uniform_real_distribution<float> numbers(1, 2);
  GpuWorld world({.size = 1});
  for (std::int64_t cols : {4, 32, 200}) {
    GpuInstance instance(world, prove(lower(divide(cols))));
    std::vector<float> x(static_cast<std::size_t>(kRows * (cols + 2)));
    std::vector<float> y(static_cast<std::size_t>(kRows * cols));
    SymmetricGpuMemory in = world.allocate(x.size() * 4), out = world.allocate(y.size() * 4);
    for (int launch = 0; launch < 3; ++launch) {
      for (float& value : x) value = numbers(random);
      world.stream(0).upload(in.addresses()[0], x.data(), x.size() * 4);
      world.stream(0).fill_bytes(out.addresses()[0], 0xff, y.size() * 4);
      instance.launch({.tensors = {{.on = in.addresses()}, {.on = out.addresses()}, {}}}, {});
      instance.wait();
      world.stream(0).download(y.data(), out.addresses()[0], y.size() * 4);
      world.stream(0).synchronize();
      for (std::size_t i = 0; i < y.size(); ++i) {
        auto width = static_cast<std::size_t>(cols);
        std::size_t row = i / width * (width + 2);
        EXPECT_NEAR(y[i], x[row + i % width] / x[row + width + 1], 1e-5)
            << "column " << i % width << " of " << cols << ", launch " << launch;
      }
    }
  }
}

// y = x, which came as packets.
Program copy(std::int64_t rows, std::int64_t cols, int threads) {
  ProgramBuilder p("copy", 1);
  auto x = p.input("x", DType::kBF16, {rows, cols});
  auto y = p.output("y", DType::kBF16, {rows, cols});
  auto inbox = p.buffer("inbox", DType::kBF16, {rows, cols},
                        {.space = Space::kSymmetric, .num_slots = 2, .packet = true});
  p.role("copy", Resource::sms(1), p.range(1), [&](const Tile&) {
    p.store_packet(inbox.tile({0, 0}, rows, cols), p.load(x.tile({0, 0}, rows, cols)));
    p.store(y.tile({0, 0}, rows, cols), p.load_packet(inbox.tile({0, 0}, rows, cols)));
  });
  Program program = p.finish();
  program.roles[0].agents[0].num_threads = threads;
  return program;
}

// Rows of lines of 128 bytes, some of which end in the middle of what a warp moves by one
// instruction: if that goes in lines, the launch waits for ever.
TEST(GpuPackets, RowsOfEveryNumberOfLinesArrive) {
  if (!cuda::has_driver() || cuda::num_devices() < 1) GTEST_SKIP() << "needs a GPU";
  std::uint64_t seed = test_seed();
  SCOPED_TRACE("STRETTO_TEST_SEED=" + std::to_string(seed));
  std::mt19937_64 random(seed);
  GpuWorld world({.size = 1});
  int in_lines = 0;
  for (int trial = 0; trial < 8; ++trial) {
    const auto rows = static_cast<std::int64_t>(trial == 0 ? 4 : 1 + random() % 5);
    const auto cols = static_cast<std::int64_t>(trial == 0   ? 896
                                                : trial == 1 ? 1024
                                                             : 128 * (1 + random() % 12));
    const int threads = 128 << random() % 3;
    SCOPED_TRACE("rows " + std::to_string(rows) + " columns " + std::to_string(cols) + " threads " +
                 std::to_string(threads));
    GpuInstance instance(world, prove(lower(copy(rows, cols, threads))));
    in_lines += instance.source().find("Lines<bf16>") != std::string::npos;
    std::vector<std::uint16_t> x(static_cast<std::size_t>(rows * cols)), y(x.size());
    SymmetricGpuMemory in = world.allocate(x.size() * 2), out = world.allocate(y.size() * 2);
    for (int launch = 0; launch < 3; ++launch) {
      for (std::uint16_t& value : x) value = static_cast<std::uint16_t>(random() % 0x7f80);
      world.stream(0).upload(in.addresses()[0], x.data(), x.size() * 2);
      world.stream(0).fill_bytes(out.addresses()[0], 0xff, y.size() * 2);
      instance.launch({.tensors = {{.on = in.addresses()}, {.on = out.addresses()}, {}}}, {});
      instance.wait();
      world.stream(0).download(y.data(), out.addresses()[0], y.size() * 2);
      world.stream(0).synchronize();
      EXPECT_EQ(x, y) << "launch " << launch;
    }
  }
  EXPECT_GT(in_lines, 0);
}

}  // namespace
}  // namespace stretto::gpu_packets_test
