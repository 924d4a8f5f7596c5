// Plans on what runs them, CPU ranks and GPUs (simulated ones will do, docs/internals). If these
// fail, a model's step computes something else with shared memory.
#include "stretto/step/runner.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <tuple>

#include "stretto/base/errors.h"
#include "stretto/base/test_seed.h"
#include "stretto/runtime/cuda/driver.h"
#include "stretto/step/cpu_runner.h"
#include "stretto/step/gpu_runner.h"
#include "stretto/step/plan_testing.h"

namespace stretto::step {
namespace {

constexpr std::size_t kCount = kTestRows * kTestCols;

enum class On : std::uint8_t { kCpu, kGpu };

struct Options {
  Sharing sharing = Sharing::kByLife;
  bool poison = false;
};

// One rank of either kind; what it is given begins as these values.
class RunnerTest : public testing::TestWithParam<On> {
 protected:
  using Values = std::map<std::string, std::vector<float>>;

  void SetUp() override {
    if (on_gpu() && cuda::num_devices() < 1) GTEST_SKIP() << "needs a GPU";
  }
  static bool on_gpu() { return GetParam() == On::kGpu; }

  static void with_runner(const Plan& plan, Values given, const Options& options,
                          const std::function<void(Runner&)>& body) {
    if (on_gpu()) return with_gpu(plan, given, options, body);
    World world({.size = 1});
    world.run([&](Rank& rank) {
      std::map<std::string, std::byte*> at;
      for (auto& [name, values] : given) at[name] = reinterpret_cast<std::byte*>(values.data());
      CpuRunner runner({rank, rank}, plan, at,
                       {.sharing = options.sharing, .poison = options.poison});
      body(runner);
    });
  }

  static void with_gpu(const Plan& plan, const Values& given, const Options& options,
                       const std::function<void(Runner&)>& body) {
    GpuWorld world({.size = 1});
    std::vector<SymmetricGpuMemory> memory;
    GpuBuffers at;
    for (const auto& [name, values] : given) {
      memory.push_back(world.allocate(values.size() * sizeof(float)));
      world.stream(0).upload(memory.back().on[0].address(), values.data(),
                             values.size() * sizeof(float));
      at[name] = memory.back().addresses();
    }
    world.synchronize();
    GpuRunner runner({world, world}, plan, at,
                     {.sharing = options.sharing, .copied = {"copied"}, .poison = options.poison});
    body(runner);
  }

  static void write(Runner& runner, const std::string& input, const std::vector<float>& values) {
    std::memcpy(runner.input(input), values.data(), values.size() * sizeof(float));
  }
  static std::vector<float> read(Runner& runner, const std::string& output, std::size_t count) {
    const auto* got = reinterpret_cast<const float*>(runner.read(output, count * sizeof(float)));
    return {got, got + count};
  }
};

std::vector<float> some_values(std::mt19937_64& random, std::size_t count = kCount) {
  std::uniform_int_distribution<int> small(-50, 50);  // sums of them are exact
  std::vector<float> out(count);
  for (float& v : out) v = static_cast<float>(small(random));
  return out;
}

// What chain(length) makes of `in`: x0 = in + w + 1, x1 = x0 + w + 1/2, then each of the two
// before.
std::vector<float> chained(const std::vector<float>& in, const std::vector<float>& weight,
                           int length, std::int64_t rows) {
  std::vector<float> out;
  for (std::size_t i = 0; i < static_cast<std::size_t>(rows * kTestCols); ++i) {
    float w = weight[i], a = in[i] + w + 1, b = a + w + 0.5f;
    for (int n = 2; n <= length; ++n) {
      std::tie(a, b) = std::pair{b, b + a + (n % 2 == 0 ? 1.0f : 0.5f)};
    }
    out.push_back(b);
  }
  return out;
}

TEST_P(RunnerTest, SharedAndPoisonedMemoryChangesNothing) {
  std::mt19937_64 random(test_seed());
  const std::vector<float> weight = some_values(random);
  for (const Options& options : {Options{.sharing = Sharing::kNone}, {}, {.poison = true}}) {
    with_runner(chain(9), {{"weight", weight}}, options, [&](Runner& runner) {
      for (std::int64_t rows : {kTestRows, std::int64_t{2}, std::int64_t{0}, kTestRows}) {
        const std::vector<float> in = some_values(random);
        write(runner, "in", in);
        runner.run("body", {rows, 0});
        EXPECT_EQ(read(runner, "out", static_cast<std::size_t>(rows * kTestCols)),
                  chained(in, weight, 9, rows))
            << rows << " rows, poisoned " << options.poison;
      }
      if (options.poison) {
        write(runner, "in", weight);
        runner.run("body", {2, 0});
        EXPECT_TRUE(std::isnan(read(runner, "out", kCount)[kCount - 1])) << "not poisoned";
      }
      if (options.sharing == Sharing::kByLife) {
        EXPECT_LT(runner.memory().arena_bytes, runner.memory().unshared_bytes);
      }
    });
  }
}

TEST_P(RunnerTest, BeginsBehindRowsAndLeavesTheOthers) {
  std::mt19937_64 random(test_seed());
  Plan plan = chain(1);
  // The second node takes rows from `some` on, and writes them there.
  Size some = Size::of_extent(1);
  Size rest{.terms = {{0, 1}, {1, -1}}};
  plan.nodes[1].extents = {rest};
  plan.nodes[1].bindings[0].from = plan.nodes[1].bindings[2].from = some;
  // What was in the rest of `out` shows: `out` is another section's first.
  plan.nodes.insert(plan.nodes.begin(), plan.nodes[0]);
  plan.nodes[0].name = "before";
  plan.nodes[0].bindings[2].buffer = plan.find_buffer("out");
  plan.sections = {{"before", 0, 1}, {"body", 1, 3}};
  const std::vector<float> weight = some_values(random), in = some_values(random);
  with_runner(plan, {{"weight", weight}}, {}, [&](Runner& runner) {
    write(runner, "in", in);
    runner.run("before", {kTestRows, 0});
    for (std::int64_t begin : {3, 1, 3}) {
      runner.run("body", {5, begin});
      const std::vector<float> out = read(runner, "out", kCount);
      for (std::int64_t row = 0; row < kTestRows; ++row) {
        // Rows of the turn before lie there, too.
        const bool written = row < 5 && (row >= 3 || (begin == 1 && row >= 1));
        if (!written && row < 5 && row >= 1) continue;
        const auto at = static_cast<std::size_t>(row * kTestCols);
        // The second node's weight begins with its buffer.
        const float own = in[at] + weight[at] + 1;
        const auto w = static_cast<std::size_t>((row - begin) * kTestCols);
        EXPECT_EQ(out[at], written ? own + weight[w] + 0.5f : own) << row << " from " << begin;
      }
    }
  });
}

TEST_P(RunnerTest, CopiesRowsBetweenSections) {
  std::mt19937_64 random(test_seed());
  Plan plan = chain(2);
  // The last node, a section of its own, reads what was copied in place of what n1 wrote.
  plan.buffers.push_back({.name = "copied", .kind = BufferKind::kInput, .shape = {}});
  plan.buffers.back().shape = {Size::of(kTestRows), Size::of(kTestCols)};
  Node& last = plan.nodes[2];
  const int from = last.bindings[0].buffer;
  last.bindings[0].buffer = plan.find_buffer("copied");
  plan.nodes.push_back(last);  // keeps what is copied from alive
  plan.nodes[3].name = "n3";
  plan.nodes[3].bindings[0].buffer = from;
  plan.nodes[3].extents = {Size::of_extent(1)};
  plan.sections = {{"body", 0, 2}, {"end", 2, 4}};
  const std::vector<float> weight = some_values(random), in = some_values(random);
  const std::vector<float> x1 = chained(in, weight, 1, kTestRows);
  with_runner(plan, {{"weight", weight}}, {.poison = true}, [&](Runner& runner) {
    write(runner, "in", in);
    runner.run("body", {kTestRows, 0});
    for (const std::vector<std::int64_t>& rows :
         {std::vector<std::int64_t>{4}, {1, 2, 5}, {5, 0, 1, 3}, {0, 1}}) {
      runner.copy_rows(plan.buffers[static_cast<std::size_t>(from)].name, rows, "copied");
      runner.run("end", {std::ssize(rows), 0});
      const std::vector<float> out = read(runner, "out", rows.size() * kTestCols);
      for (std::size_t i = 0; i < rows.size(); ++i) {
        const auto row = static_cast<std::size_t>(rows[i] * kTestCols);
        const float x0 = in[i * kTestCols] + weight[i * kTestCols] + 1;
        EXPECT_EQ(out[i * kTestCols], x1[row] + x0 + 1) << "row " << rows[i];
      }
    }
    // In place of rows of nobody, the first ones where they are.
    runner.run("end", {0, 2});
    EXPECT_EQ(read(runner, "out", 1)[0], x1[0] + in[0] + weight[0] + 1 + 1);
  });
}

TEST_P(RunnerTest, SaysWhatIsWrong) {
  const std::vector<float> weight(kCount);
  auto nothing = [](Runner&) {};
  EXPECT_THROW(with_runner(chain(2), {}, {}, nothing), UserError);
  Plan wrong = chain(2);
  wrong.nodes[0].bindings[0].buffer = 3;
  EXPECT_THROW(with_runner(wrong, {{"weight", weight}}, {}, nothing), UserError);
  with_runner(chain(2), {{"weight", weight}}, {}, [](Runner& runner) {
    EXPECT_THROW(runner.run("tail", {0, 0}), InternalError);
    EXPECT_THROW(runner.run("body", {kTestRows + 1, 0}), InternalError);
    EXPECT_THROW(runner.run("body", {1}), InternalError);
    EXPECT_THROW(runner.input("y"), InternalError);
  });
}

// What other ranks address cannot be the caller's.
TEST_P(RunnerTest, SymmetricStatesAreTheSteps) {
  Plan plan{.name = "kept"};
  plan.extents = {{"rows", kTestRows}};
  plan.buffers = {{.name = "x", .kind = BufferKind::kInput},
                  {.name = "kept", .kind = BufferKind::kState},
                  {.name = "out", .kind = BufferKind::kOutput}};
  for (Buffer& b : plan.buffers) b.shape = {Size::of_extent(0), Size::of(kTestCols)};
  plan.buffers[1].shape[0] = Size::of(8);
  plan.buffers[1].symmetric = true;
  plan.programs = {keep_program()};
  plan.nodes = {{.name = "keep",
                 .program = 0,
                 .bindings = {{"x", 0, {}}, {"kept", 1, {}}, {"out", 2, {}}},
                 .extents = {Size::of_extent(0)}}};
  plan.sections = {{"body", 0, 1}};
  EXPECT_GE(assign(plan).symmetric_bytes, 8 * kTestCols * sizeof(float));
  with_runner(plan, {}, {}, [&](Runner& runner) {
    write(runner, "x", std::vector<float>(kTestCols, 3));
    runner.run("body", {1});
    write(runner, "x", std::vector<float>(kTestCols, 4));
    runner.run("body", {1});
    EXPECT_EQ(read(runner, "out", 1)[0], 7.0f) << "the step before left 3";
  });
}

TEST(CpuRunnerTest, RunnersThatTakeTurnsShareAnArena) {
  std::mt19937_64 random(test_seed());
  std::vector<float> weight = some_values(random);
  World world({.size = 1});
  world.run([&](Rank& rank) {
    const std::map<std::string, std::byte*> given = {
        {"weight", reinterpret_cast<std::byte*>(weight.data())}};
    Plan wide = chain(5);
    // A symmetric buffer of one rank alone lies in the arena, too.
    wide.buffers[static_cast<std::size_t>(wide.find_buffer("x2"))].symmetric = true;
    CpuRunner first({rank, rank}, wide, given, {.poison = true});
    CpuRunner second({rank, rank}, chain(2), given, {.arena = first.arena(), .poison = true});
    Plan larger = chain(1);
    larger.buffers.push_back({.name = "more", .shape = {Size::of(1 << 20)}});
    CpuRunner third({rank, rank}, larger, given, {.arena = first.arena()});
    EXPECT_EQ(second.arena(), first.arena());
    EXPECT_NE(third.arena(), first.arena()) << "it is too small";
    for (auto [runner, length] :
         {std::pair{&second, 2}, {&first, 5}, {&third, 1}, {&second, 2}, {&first, 5}}) {
      const std::vector<float> in = some_values(random);
      std::memcpy(runner->input("in"), in.data(), kCount * sizeof(float));
      runner->run("body", {kTestRows, 0});
      const auto* got = reinterpret_cast<const float*>(runner->read("out", kCount * sizeof(float)));
      EXPECT_EQ(std::vector<float>(got, got + kCount), chained(in, weight, length, kTestRows));
    }
  });
}

// Graphs of two numbers of rows, and runs without one in between.
TEST(GpuRunnerTest, CapturedRunsAreTheSame) {
  if (cuda::num_devices() < 1) GTEST_SKIP() << "needs a GPU";
  std::mt19937_64 random(test_seed());
  const std::vector<float> weight = some_values(random);
  GpuWorld world({.size = 1});
  SymmetricGpuMemory memory = world.allocate(kCount * sizeof(float));
  world.stream(0).upload(memory.on[0].address(), weight.data(), kCount * sizeof(float));
  world.synchronize();
  GpuRunner runner({world, world}, chain(5), {{"weight", memory.addresses()}});
  runner.capture("body", {kTestRows, 0});
  runner.capture("body", {3, 0});
  for (std::int64_t rows : {3, 6, 4, 3, 6}) {
    const std::vector<float> in = some_values(random);
    std::memcpy(runner.input("in"), in.data(), kCount * sizeof(float));
    runner.run("body", {rows, 0});
    const auto count = static_cast<std::size_t>(rows * kTestCols);
    const auto* got = reinterpret_cast<const float*>(runner.read("out", count * sizeof(float)));
    EXPECT_EQ(std::vector<float>(got, got + count), chained(in, weight, 5, rows)) << rows;
  }
  // Another one in the same memory.
  GpuRunner shorter({world, world}, chain(4), {{"weight", memory.addresses()}},
                    {.arena = runner.arena()});
  EXPECT_EQ(shorter.arena(), runner.arena());
  for (GpuRunner* by_turns : {&shorter, &runner, &shorter}) {
    const std::vector<float> in = some_values(random);
    std::memcpy(by_turns->input("in"), in.data(), kCount * sizeof(float));
    by_turns->run("body", {kTestRows, 0});
    const auto* got = reinterpret_cast<const float*>(by_turns->read("out", kCount * sizeof(float)));
    EXPECT_EQ(std::vector<float>(got, got + kCount),
              chained(in, weight, by_turns == &runner ? 5 : 4, kTestRows));
  }
  EXPECT_EQ(runner.nodes_of("body", {0, 0}).size(), 0u);
  EXPECT_EQ(runner.time_programs("body", {2, 0}, 1).size(), 2u);
}

INSTANTIATE_TEST_SUITE_P(Machines, RunnerTest, testing::Values(On::kCpu, On::kGpu),
                         [](const auto& info) { return info.param == On::kCpu ? "Cpu" : "Gpu"; });

}  // namespace
}  // namespace stretto::step
