// Warpgroups that end their loops in turn, and agents that store for others, change when a product
// is stored and not a bit of it. Needs one GPU.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include "stretto/base/test_seed.h"
#include "stretto/gpu/gpu_instance.h"
#include "stretto/lang/program_builder.h"
#include "stretto/runtime/cuda/driver.h"

namespace stretto::gpu_stores_test {
namespace {

constexpr std::int64_t kM = 700, kLaunches = 5;
using Bits = std::vector<std::uint16_t>;

struct Sample {
  std::int64_t n = 776, k = 1024;  // 509 columns: nothing for TMA
  std::int64_t bm = 128, bn = 256;
  int stages = 4, stagger = 0, slots = 0, cluster = 1;
  // Rows of a end before the matrix does; tiles are told to a role that copies them at once.
  bool limit = false, tells = false;
  bool adds = false;  // rows of memory
};

// Some tiles a worker, ragged in rows and columns.
Program product(const Sample& s) {
  ProgramBuilder p("product", 1);
  auto a = p.input("a", DType::kBF16, {kM, s.k});
  auto b = p.input("b", DType::kBF16, {s.n, s.k});
  TensorRef added;
  if (s.adds) added = p.input("added", DType::kBF16, {kM, s.n});
  auto c = p.output("c", DType::kBF16, {kM, s.n});
  std::int64_t row_tiles = ceil_div(kM, s.bm), col_tiles = ceil_div(s.n, s.bn);
  SignalRef begun, stored;
  if (s.tells) {
    begun = p.signal("begun");
    stored = p.signal("stored", row_tiles * col_tiles);
    p.on_start([&] { p.notify(begun, 0); });
  }
  Resource sms =
      Resource::sms(3).pipelined(s.stages).staggered(s.stagger).with_epilogue(s.slots).clustered(
          s.cluster);
  p.role("multiply", sms, p.grid(c, s.bm, s.bn), [&](const Tile& t) {
    Value acc = p.zeros(DType::kF32, s.bm, s.bn);
    p.loop(ceil_div(s.k, 64), [&](const Index& i) {
      Slice rows = a.tile({t.row, i * 64}, s.bm, 64);
      if (s.limit) rows = rows.until_row(kM - 5);
      acc = dot(acc, p.load(rows), p.load(b.tile({t.col, i * 64}, s.bn, 64)).T());
    });
    if (s.tells) p.wait(begun, 0);
    if (s.adds) {
      Slice rows = added.tile({t.row, t.col}, s.bm, s.bn).until_row(kM - 5);
      acc = acc + cast(p.load(rows), DType::kF32);
    }
    p.store(c.tile({t.row, t.col}, s.bm, s.bn), cast(acc, DType::kBF16));
    if (s.tells) p.notify(stored[t.index], 0);
  });
  if (!s.tells) return p.finish();
  auto copied = p.output("copied", DType::kBF16, {kM, s.n});
  p.role("copy", Resource::sms(2), p.grid(c, s.bm, s.bn), [&](const Tile& t) {
    p.wait(stored[t.index], 1);
    p.store(copied.tile({t.row, t.col}, s.bm, s.bn), p.load(c.tile({t.row, t.col}, s.bm, s.bn)));
  });
  return p.finish();
}

class GpuStores : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!cuda::has_driver() || cuda::num_devices() < 1) GTEST_SKIP() << "needs a GPU";
  }

  // bf16 numbers between 1 and 2, and their negatives.
  Bits numbers(std::int64_t count) {
    Bits out(static_cast<std::size_t>(count));
    for (std::uint16_t& x : out) {
      auto r = static_cast<std::uint32_t>(random_());
      x = static_cast<std::uint16_t>(0x3f80 | (r & 0x7f) | (r & 0x80) << 8);
    }
    return out;
  }

  static Bits run(const Sample& s, const Bits& a, const Bits& b, const Bits& added = {}) {
    GpuWorld world({.size = 1});
    GpuInstance instance(world, prove(lower(product(s))));
    SymmetricGpuMemory left = world.allocate(a.size() * 2), right = world.allocate(b.size() * 2);
    Bits c(static_cast<std::size_t>(kM * s.n));
    SymmetricGpuMemory out = world.allocate(c.size() * 2), copied = world.allocate(c.size() * 2);
    SymmetricGpuMemory rows = world.allocate(std::max<std::size_t>(added.size(), 1) * 2);
    Args args{.tensors = {{.on = left.addresses()}, {.on = right.addresses()}}};
    if (s.adds) {
      world.stream(0).upload(rows.addresses()[0], added.data(), added.size() * 2);
      args.tensors.push_back({.on = rows.addresses()});
    }
    args.tensors.push_back({.on = out.addresses()});
    if (s.tells) args.tensors.push_back({.on = copied.addresses()});
    const SymmetricGpuMemory& result = s.tells ? copied : out;
    world.stream(0).upload(left.addresses()[0], a.data(), a.size() * 2);
    world.stream(0).upload(right.addresses()[0], b.data(), b.size() * 2);
    for (int e = 0; e < kLaunches; ++e) {
      world.stream(0).fill_bytes(out.addresses()[0], 0xff, c.size() * 2);
      world.stream(0).fill_bytes(copied.addresses()[0], 0xff, c.size() * 2);
      instance.launch(args, {});
      instance.wait();
    }
    world.stream(0).download(c.data(), result.addresses()[0], c.size() * 2);
    world.stream(0).synchronize();
    return c;
  }

  void expect_same(Sample s) {
    Bits a = numbers(kM * s.k), b = numbers(s.n * s.k);
    Bits got = run(s, a, b);
    s.stagger = s.slots = 0;
    s.tells = false;
    EXPECT_EQ(got, run(s, a, b)) << "n " << s.n << " k " << s.k;
  }

  std::uint64_t seed_ = test_seed();
  std::mt19937_64 random_{seed_};
  testing::ScopedTrace trace_{__FILE__, __LINE__, "STRETTO_TEST_SEED=" + std::to_string(seed_)};
};

TEST_F(GpuStores, StaggeredWarpgroupsGiveTheSameBits) {
  for (std::int64_t k : {64, 192, 1024}) expect_same({.k = k, .stagger = 3});
  expect_same({.bm = 256, .bn = 128, .stages = 6, .stagger = 4, .cluster = 2});
}

// They wait and notify without waiting for each other.
TEST_F(GpuStores, StaggeredWarpgroupsTellWhatBothHaveStored) {
  for (std::int64_t k : {64, 192, 1024}) {
    expect_same({.k = k, .stagger = 3, .limit = true, .tells = true});
  }
  expect_same({.bn = 128, .stages = 6, .stagger = 3, .tells = true});
}

// Nothing but what is added, whose elements four lanes load together and deal out.
TEST_F(GpuStores, RowsOfMemoryAreAddedWhereTheyBelong) {
  Sample s{.k = 64, .adds = true};
  for (std::int64_t n : {776, 800}) {  // tiles whole and ragged
    s.n = n;
    Bits none(static_cast<std::size_t>(kM * s.k)), b = numbers(s.n * s.k), rows = numbers(kM * s.n);
    Bits want = rows;
    std::fill(want.end() - 5 * s.n, want.end(), std::uint16_t{0});
    EXPECT_EQ(run(s, none, b, rows), want) << n;
  }
}

TEST_F(GpuStores, EpilogueWarpsGiveTheSameBits) {
  for (std::int64_t k : {64, 1024}) expect_same({.k = k, .slots = 2});
  expect_same({.bm = 256, .bn = 192, .slots = 3, .cluster = 2});
  expect_same({.n = 509, .bn = 128, .slots = 2});
}

TEST_F(GpuStores, BothTogetherGiveTheSameBits) {
  for (int slots : {1, 3, 4}) expect_same({.bn = 192, .stagger = 2, .slots = slots});
}

}  // namespace
}  // namespace stretto::gpu_stores_test
