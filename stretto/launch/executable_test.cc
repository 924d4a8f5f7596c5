// One program through one interface on CPU ranks and on GPUs: the same values, and launches that
// are prepared once. A user who loses this writes everything twice.
#include "stretto/launch/executable.h"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "stretto/base/allocations_testing.h"
#include "stretto/base/test_seed.h"
#include "stretto/lang/program_builder.h"
#include "stretto/runtime/cuda/driver.h"
#include "stretto/runtime/cuda/driver_calls_testing.h"

namespace stretto {
namespace {

constexpr int kRanks = 2, kRows = 8, kCols = 64;
constexpr std::size_t kElements = std::size_t{kRows} * kCols, kBytes = kElements * 4;

// out = own + the peer's `shared`, of whose memory the first rows are something else's.
Program add_peers() {
  ProgramBuilder p("add_peers", kRanks);
  Index rows = p.extent("rows", kRows);
  auto own = p.input("own", DType::kF32, {rows, kCols});
  auto shared = p.input("shared", DType::kF32, {rows, kCols}, Space::kSymmetric);
  auto out = p.output("out", DType::kF32, {rows, kCols});
  auto ready = p.signal("ready"), done = p.signal("done");
  Index peer = 1 - p.rank();
  p.on_start([&] { p.notify(ready, peer); });
  p.role("add", Resource::sms(1), p.range(1), [&](const Tile&) {
    p.wait(ready, peer);
    p.store(out.tile({0, 0}, kRows, kCols), p.load(own.tile({0, 0}, kRows, kCols)) +
                                                p.load(shared.on(peer).tile({0, 0}, kRows, kCols)));
    p.notify(done, peer);
  });
  p.on_end([&] { p.wait(done, peer); });
  return p.finish();
}

using Values = std::vector<float>;

// The inputs of a rank, [kElements] each, and what comes out for `rows` rows.
struct RankValues {
  Values own, shared;
};
std::vector<RankValues> random_values(std::mt19937_64& random) {
  std::uniform_real_distribution<float> some(-1, 1);
  std::vector<RankValues> out(kRanks);
  for (RankValues& rank : out) {
    for (Values* values : {&rank.own, &rank.shared}) {
      values->resize(kElements);
      for (float& v : *values) v = some(random);
    }
  }
  return out;
}
void expect_sums(const Values& out, const std::vector<RankValues>& in, int rank, int rows) {
  for (std::size_t i = 0; i < std::size_t(rows) * kCols; ++i) {
    float expected = in[std::size_t(rank)].own[i] + in[std::size_t(1 - rank)].shared[i];
    ASSERT_EQ(out[i], expected) << "rank " << rank << ", element " << i << " of " << rows
                                << " rows";
  }
}

Args args_of(const Program& p, void* own, const SymmetricBuffer& shared, void* out) {
  Args args{.tensors = std::vector<TensorArg>(p.tensors.size())};
  args.tensors[std::size_t(p.find_tensor("own"))].data = own;
  args.tensors[std::size_t(p.find_tensor("shared"))] = {.symmetric = &shared,
                                                        .offset_bytes = kBytes};
  args.tensors[std::size_t(p.find_tensor("out"))].data = out;
  return args;
}

constexpr int kLaunches[] = {kRows, 3, 0, kRows};  // rows of each

TEST(Executables, RunOnCpuRanks) {
  const std::uint64_t seed = test_seed();
  Proved program = prove(lower(add_peers()));
  World({.size = kRanks}).run([&](Rank& rank) {
    std::mt19937_64 random(seed);  // the same on both ranks
    std::unique_ptr<Executable> loaded = load(program, rank);
    SymmetricBuffer shared = rank.allocate("shared", DType::kU8, 2 * kBytes);
    Values own(kElements), out(kElements);
    std::shared_ptr<Launch> launch =
        loaded->prepare(args_of(loaded->program(), own.data(), shared, out.data()));
    for (int rows : kLaunches) {
      std::vector<RankValues> in = random_values(random);
      const RankValues& mine = in[std::size_t(rank.index())];
      own = mine.own;
      std::memcpy(shared.on<std::byte>(rank.index()) + kBytes, mine.shared.data(), kBytes);
      rank.barrier();
      const std::int64_t extents[] = {rows};
      launch->run(extents);
      expect_sums(out, in, rank.index(), rows);
      rank.barrier();
    }
    EXPECT_THROW(loaded->prepare({.tensors = {}, .scalars = {.symmetric = &shared}}), UserError);
    rank.release(shared);
  });
}

// As of a caller whose addresses change from call to call, in turn.
TEST(Executables, OnCpuRanksFindAgainWhatTheyPrepared) {
  Proved program = prove(lower(add_peers()));
  World({.size = kRanks}).run([&](Rank& rank) {
    std::unique_ptr<Executable> loaded = load(program, rank);
    SymmetricBuffer shared = rank.allocate("shared", DType::kU8, 2 * kBytes);
    constexpr std::size_t kMost = Executable::kMostPrepared;
    std::vector<Values> outs(kMost + 1, Values(kElements));
    Values own(kElements, 2);
    std::vector<Args> places;
    for (Values& out : outs) {
      places.push_back(args_of(loaded->program(), own.data(), shared, out.data()));
    }
    const std::int64_t extents[] = {kRows};
    std::vector<std::shared_ptr<Launch>> made;
    for (std::size_t i = 0; i < kMost; ++i) made.push_back(loaded->prepare(places[i]));
    for (std::size_t i = 0; i < kMost; ++i) EXPECT_EQ(loaded->prepare(places[i]), made[i]) << i;
    for (std::size_t i : {0, 1}) made[i]->run(extents);
    const std::size_t allocations = count_allocations([&] {
      for (std::size_t i : {0, 1, 0, 1}) loaded->prepare(places[i])->run(extents);
    });
    EXPECT_EQ(allocations, 0u);
    EXPECT_EQ(outs[1][kElements - 1], 2 + *shared.on<float>(1 - rank.index()));
    EXPECT_NE(loaded->prepare(places[kMost]), made[kMost - 1]);
    EXPECT_EQ(loaded->prepare(places[1]), made[1]) << "what was used last is forgotten";
    EXPECT_NE(loaded->prepare(places[2]), made[2]) << "what was used longest ago is kept";
    rank.barrier();
    rank.release(shared);
  });
}

TEST(Executables, RunOnGpus) {
  if (cuda::num_devices() < kRanks) GTEST_SKIP() << "needs two GPUs";
  std::mt19937_64 random(test_seed());
  GpuWorld world({.size = kRanks});
  Lowered program = lower(add_peers());
  std::unique_ptr<Executable> loaded = load(prove(program), world, generate(program));
  SymmetricGpuMemory own = world.allocate(kBytes), shared = world.allocate(2 * kBytes),
                     out = world.allocate(kBytes);
  const SymmetricBuffer buffer = on_gpus("shared", shared);
  const Program& p = loaded->program();
  auto args_on = [&](const SymmetricGpuMemory& to) {
    Args args = args_of(p, nullptr, buffer, nullptr);
    args.tensors[std::size_t(p.find_tensor("own"))].on = own.addresses();
    args.tensors[std::size_t(p.find_tensor("out"))].on = to.addresses();
    return args;
  };
  auto prepare = [&] { return loaded->prepare(args_on(out)); };
  for (int rows : kLaunches) {
    std::vector<RankValues> in = random_values(random);
    for (std::size_t r = 0; r < kRanks; ++r) {
      const cuda::Stream& stream = world.stream(int(r));
      stream.upload(own.on[r].address(), in[r].own.data(), kBytes);
      stream.upload(shared.on[r].address() + kBytes, in[r].shared.data(), kBytes);
    }
    world.synchronize();
    const std::int64_t extents[] = {rows};
    for (int r = 0; r < kRanks; ++r) prepare()->run(extents, r, world.stream(r));
    for (std::size_t r = 0; r < kRanks; ++r) {
      Values got(kElements);
      world.stream(int(r)).download(got.data(), out.on[r].address(), kBytes);
      world.stream(int(r)).synchronize();
      expect_sums(got, in, int(r), rows);
    }
  }
  EXPECT_EQ(prepare(), prepare()) << "the same places are prepared twice";
  EXPECT_NE(prepare(), loaded->prepare(args_on(shared)));
  // Memory of fewer rows than the bound is enough for launches of so few, and for no others.
  SymmetricBuffer few = buffer;
  few.bytes = kBytes + 2 * kCols * 4;
  Args small = args_on(out);
  small.tensors[std::size_t(p.find_tensor("shared"))].symmetric = &few;
  loaded->prepare(small)->run(std::vector<std::int64_t>{2});
  loaded->prepare(small)->run(std::vector<std::int64_t>{0});
  EXPECT_THROW(loaded->prepare(small)->run(std::vector<std::int64_t>{3}), UserError);
  world.synchronize();
  EXPECT_THROW(loaded->prepare({.tensors = std::vector<TensorArg>(p.tensors.size())}), UserError);
  EXPECT_THROW(loaded->prepare({}), UserError);
  auto at = [&](const char* name) { return std::size_t(p.find_tensor(name)); };
  auto expect_refused = [&](const std::string& why, const auto& spoil) {
    Args args = args_on(out);
    spoil(args.tensors);
    try {
      loaded->prepare(args);
      ADD_FAILURE() << "not refused: " << why;
    } catch (const UserError& e) {
      EXPECT_NE(std::string(e.what()).find(why), std::string::npos) << e.what();
    }
  };
  void* alone = reinterpret_cast<void*>(own.on[0].address());
  expect_refused("tensor 'own' needs every rank's address",
                 [&](auto& t) { t[at("own")] = {.data = alone}; });
  expect_refused("tensor 'shared' is symmetric",
                 [&](auto& t) { t[at("shared")] = {.data = alone}; });
  expect_refused("tensor 'out' has 1 addresses for 2 ranks",
                 [&](auto& t) { t[at("out")].on.pop_back(); });
  expect_refused("tensor 'out' is not aligned to 16 bytes",
                 [&](auto& t) { t[at("out")].on[1] += 8; });
  expect_refused("tensor 'shared' is not aligned",
                 [&](auto& t) { t[at("shared")].offset_bytes += 4; });
}

// Both GPUs in one call, and one of them alone, at two places by turns: the same values, places are
// found again, and nothing is allocated then.
TEST(Executables, RunOnAllGpusInOneCall) {
  if (cuda::num_devices() < kRanks) GTEST_SKIP() << "needs two GPUs";
  std::mt19937_64 random(test_seed());
  GpuWorld world({.size = kRanks});
  const GpuTarget gpu = world.target();
  Lowered program = lower(add_peers());
  std::unique_ptr<Executable> loaded =
      load(prove(program, {.gpu = gpu}), world, generate(program, {.target = gpu}));
  const Program& p = loaded->program();
  SymmetricGpuMemory own = world.allocate(2 * kBytes), shared = world.allocate(2 * kBytes),
                     out = world.allocate(2 * kBytes);
  auto args_at = [&](std::size_t offset) {
    Args args{.tensors = std::vector<TensorArg>(p.tensors.size())};
    auto place = [&](const char* name, const SymmetricGpuMemory& memory) {
      for (CUdeviceptr address : memory.addresses()) {
        args.tensors[std::size_t(p.find_tensor(name))].on.push_back(address + offset);
      }
    };
    place("own", own), place("shared", shared), place("out", out);
    return args;
  };
  int turn = 0;
  for (int rows : kLaunches) {
    const std::size_t offset = turn % 2 * kBytes;
    std::vector<RankValues> in = random_values(random);
    for (std::size_t r = 0; r < kRanks; ++r) {
      const cuda::Stream& stream = world.stream(int(r));
      stream.upload(own.on[r].address() + offset, in[r].own.data(), kBytes);
      stream.upload(shared.on[r].address() + offset, in[r].shared.data(), kBytes);
    }
    world.synchronize();
    const std::int64_t extents[] = {rows};
    std::shared_ptr<Launch> launches = loaded->prepare(args_at(offset));
    if (turn++ < 2) {
      launches->run(extents);
    } else {
      for (int r = 0; r < kRanks; ++r) launches->run(extents, r, world.stream(r));
    }
    loaded->wait();
    for (std::size_t r = 0; r < kRanks; ++r) {
      Values got(kElements);
      world.stream(int(r)).download(got.data(), out.on[r].address() + offset, kBytes);
      world.stream(int(r)).synchronize();
      expect_sums(got, in, int(r), rows);
    }
  }
  const Args first = args_at(0), second = args_at(kBytes);
  std::shared_ptr<Launch> known = loaded->prepare(first);
  EXPECT_NE(loaded->prepare(second), known);
  EXPECT_EQ(loaded->prepare(first), known) << "the same places are prepared twice";
  const std::int64_t all[] = {kRows}, past[] = {kRows + 1};
  known->run(all);
  loaded->wait();
  {
    cuda::DriverCalls swallowed(cuda::DriverCalls::Mode::kSwallow);
    EXPECT_EQ(count_allocations([&] { loaded->prepare(first)->run(all); }), 0u);
  }
  EXPECT_THROW(known->run(past), UserError);
  EXPECT_THROW(loaded->prepare({}), UserError);
}

template <typename T>
concept IsLoaded = requires(T program, GpuWorld& world, GpuCode code) {
  load(program, world, std::move(code));
};
static_assert(std::is_abstract_v<Executable>);  // load() makes one, and nothing else
static_assert(IsLoaded<Proved>);
static_assert(!IsLoaded<Program> && !IsLoaded<Lowered>);

// What was proved elsewhere is not launched here.
TEST(Executables, OnGpusAreOfWhatWasProved) {
  if (cuda::num_devices() < kRanks) GTEST_SKIP() << "needs two GPUs";
  GpuWorld world({.size = kRanks});
  Lowered program = lower(add_peers());
  GpuTarget here = world.target();
  for (int more : {-1, 1}) {
    Proved elsewhere = prove(program, {.gpu = {.sms = here.sms + more}});
    try {
      load(elsewhere, world, generate(program));
      ADD_FAILURE() << "was loaded on " << here.sms << " SMs";
    } catch (const UserError& e) {
      EXPECT_NE(std::string(e.what()).find("add_peers: proved for GPUs of"), std::string::npos)
          << e.what();
    }
  }
  SymmetricGpuMemory memory = world.allocate(2 * kBytes);
  const SymmetricBuffer buffer = on_gpus("memory", memory);
  for (bool bounds_only : {false, true}) {
    Proved proved = prove(program, {.bounds_only = bounds_only, .gpu = here});
    auto loaded = load(proved, world, generate(program));
    Args args = args_of(loaded->program(), nullptr, buffer, nullptr);
    for (const char* name : {"own", "out"}) {
      args.tensors[std::size_t(loaded->program().find_tensor(name))].on = memory.addresses();
    }
    auto launch = loaded->prepare(args);
    for (std::int64_t rows : {kRows + 1, -1, bounds_only ? kRows - 1 : kRows + 2}) {
      EXPECT_THROW(launch->run(std::span(&rows, 1)), UserError) << rows << " rows";
    }
    EXPECT_THROW(launch->run({}), UserError);
  }
}

}  // namespace
}  // namespace stretto
