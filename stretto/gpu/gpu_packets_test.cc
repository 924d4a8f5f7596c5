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

namespace stretto {
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
  SCOPED_TRACE("STRETTO_SEED=" + std::to_string(seed));
  std::mt19937_64 random(seed);
  std::uniform_real_distribution<float> numbers(1, 2);
  GpuWorld world({.size = 1});
  for (std::int64_t cols : {4, 32, 200}) {
    GpuInstance instance(world, compile(divide(cols)));
    std::vector<float> x(static_cast<std::size_t>(kRows * (cols + 2)));
    std::vector<float> y(static_cast<std::size_t>(kRows * cols));
    SymmetricGpuMemory in = world.allocate(x.size() * 4), out = world.allocate(y.size() * 4);
    for (int launch = 0; launch < 3; ++launch) {
      for (float& value : x) value = numbers(random);
      world.stream(0).upload(in.addresses()[0], x.data(), x.size() * 4);
      world.stream(0).fill_bytes(out.addresses()[0], 0xff, y.size() * 4);
      instance.launch({.tensors = {in.addresses(), out.addresses(), {}}});
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

}  // namespace
}  // namespace stretto
