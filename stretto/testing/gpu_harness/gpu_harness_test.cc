// The measuring arithmetic anywhere; the runner against a GPU where there is one, with a case whose
// reference is wrong, which it must refuse.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "stretto/base/errors.h"
#include "stretto/base/test_seed.h"
#include "stretto/compiler.h"
#include "stretto/executor/program_runner.h"
#include "stretto/lang/program_builder.h"
#include "stretto/ops/measure/gpu_time.h"
#include "stretto/ops/measure/ranks_time.h"
#include "stretto/runtime/cuda/nvrtc.h"
#include "stretto/testing/cases/ag_gemm_case.h"
#include "stretto/testing/cases/cases.h"
#include "stretto/testing/cases/gemm_case.h"
#include "stretto/testing/gpu_harness/gpu_case.h"
#include "stretto/testing/gpu_harness/late_inputs.h"
#include "stretto/testing/harness/case_data.h"

namespace stretto {
namespace {

TEST(BufferSets, PassTheCacheTwice) {
  constexpr std::size_t kL2 = std::size_t{60} << 20;
  EXPECT_EQ(num_buffer_sets(std::size_t{1} << 30, kL2), 3);
  for (std::size_t bytes : {std::size_t{1} << 20, std::size_t{50} << 20, std::size_t{7} << 20}) {
    EXPECT_GT(static_cast<std::size_t>(num_buffer_sets(bytes, kL2)) * bytes, 2 * kL2) << bytes;
    EXPECT_EQ(num_buffer_sets(bytes, kL2) % 2, 1) << bytes;
  }
}

// Twice the bytes take about twice the time, whichever way they are enqueued.
TEST(TimeGpu, TellsTheLongerOfTwoFills) {
  if (cuda::num_devices() == 0) GTEST_SKIP() << "no GPU";
  constexpr std::size_t kBytes = std::size_t{128} << 20;
  cuda::Device device(0);
  cuda::Stream stream(device);
  std::vector<cuda::DeviceMemory> sets;
  for (int i = 0; i < 3; ++i) sets.emplace_back(device, 2 * kBytes);
  auto fill = [&](std::size_t bytes) -> GpuCall {
    return [&, bytes](int set) {
      stream.fill_bytes(sets[static_cast<std::size_t>(set)].address(), 0, bytes);
    };
  };
  for (bool graph : {false, true}) {
    GpuTimeOptions options{.num_sets = 3, .warmup_ms = 50, .samples = 200, .graph = graph};
    auto ms = time_gpu(device, stream, {fill(kBytes), fill(2 * kBytes)}, options);
    ASSERT_EQ(ms.size(), 2u);
    ASSERT_EQ(ms[0].size(), 200u);
    MedianInterval ratio = paired_ratio(ms[1], ms[0]);
    EXPECT_GT(ratio.median, 1.6) << "graph " << graph;
    EXPECT_LT(ratio.median, 2.4) << "graph " << graph;
    // No device writes 128 MiB in less than 10 us, or takes a second for it.
    EXPECT_GT(median(ms[0]), 0.01) << "graph " << graph;
    EXPECT_LT(median(ms[0]), 1000) << "graph " << graph;
  }
}

// Every call in turn takes more of a stream's queue than the one before: what is reckoned with, far
// more, and more than a batch of a few calls.
TEST(TimeRanks, CallsOfManyEntriesGoInSmallerBatches) {
  if (cuda::num_devices() == 0) GTEST_SKIP() << "no GPU";
  GpuWorld world({.size = 1});
  SymmetricGpuMemory words = world.allocate(4096);
  double fewer = 0;  // ms
  for (int entries : {1, 50, 250}) {
    RanksCall call = [&](int) {
      for (int i = 0; i < entries; ++i) world.stream(0).fill_bytes(words.on[0].address(), 0, 4096);
    };
    auto ms = time_ranks(world, {call, call}, {.warmup_ms = 10, .samples = 30});
    ASSERT_EQ(ms.size(), 2u);
    // Of the whole call, not of what a batch holds of it. Other processes only add to a time.
    double shortest = std::min(std::ranges::min(ms[0]), std::ranges::min(ms[1]));
    for (const std::vector<double>& of_one : ms) EXPECT_EQ(of_one.size(), 30u) << entries;
    EXPECT_GT(shortest, 2 * fewer) << entries;
    fewer = shortest;
  }
}

TEST(CaseData, AWrongElementAWrongBitAndAWriteOutsideAreFound) {
  OpCase c = gemm_case({.m = 8, .n = 8, .k = 8}, {.loop = {.tile = {8, 8, 8}}}, 8, 1);
  auto out = static_cast<std::size_t>(c.program.find_tensor("c"));
  std::vector<float> c_values(64);
  std::copy(c.expected[0][out].begin(), c.expected[0][out].end(), c_values.begin());
  TensorBytes left = [&](std::size_t) { return std::as_bytes(std::span(c_values)); };
  EXPECT_EQ(compare_case(c, 0, left), "");
  FirstBits bits;
  EXPECT_EQ(bits.check(c, left), "");
  c_values[17] += 1;
  EXPECT_NE(compare_case(c, 0, left).find("c[17]"), std::string::npos);
  EXPECT_NE(bits.check(c, left), "");

  std::vector<std::byte> storage(2 * kGuardBytes + 32, kGuard);
  EXPECT_EQ(check_guards(storage, "c"), "");
  storage[kGuardBytes + 3] = std::byte{0};  // inside
  EXPECT_EQ(check_guards(storage, "c"), "");
  storage[kGuardBytes + 32] = std::byte{0};  // just past the end
  EXPECT_NE(check_guards(storage, "c").find("32 bytes from its start"), std::string::npos);
}

TEST(GpuCase, AGemmRunsAndAWrongReferenceIsRefused) {
  if (cuda::num_devices() == 0) GTEST_SKIP() << "no GPU";
  std::uint64_t seed = test_seed();
  GpuWorld world({.size = 1});
  GemmDesc desc{.m = 136,
                .n = 264,
                .k = 200,
                .a_dtype = DType::kBF16,
                .b_dtype = DType::kBF16,
                .c_dtype = DType::kBF16};
  GemmConfig config{.loop = {.tile = {128, 128, 64}, .num_compute_sms = 4, .num_stages = 4}};
  OpCase c = gemm_case(desc, config, 133, seed);
  EXPECT_EQ(run_gpu_case(world, c, {.seed = seed}), "");
  auto out = static_cast<std::size_t>(c.program.find_tensor("c"));
  c.expected[0][out][5] += 100;
  EXPECT_NE(run_gpu_case(world, c, {.seed = seed}).find("c[5]"), std::string::npos);
}

// Rows that end within a tile, and columns, too: TMA stores the whole slots, a thread the rest.
TEST(GpuCase, AnAgentStoresWhereARanksRowsEnd) {
  std::uint64_t seed = test_seed();
  AgGemmConfig config{.loop = {.tile = {128, 192, 64},
                               .num_compute_sms = 4,
                               .num_stages = 4,
                               .stagger = 2,
                               .store_slots = 4},
                      .gather = Gather::kSend,
                      .comm_rows = 64,
                      .channels_per_rank = 2};
  for (int world_size : {1, 2}) {
    if (cuda::num_devices() < world_size) GTEST_SKIP() << "needs " << world_size << " GPUs";
    GpuWorld world({.size = world_size});
    AgGemmDesc desc{.world_size = world_size,
                    .m = 300,
                    .n = 328,
                    .k = 200,
                    .a_dtype = DType::kBF16,
                    .b_dtype = DType::kBF16,
                    .c_dtype = DType::kBF16};
    for (std::int64_t m : {300, 299, 257, 129, 3, 0}) {
      OpCase c = ag_gemm_case(desc, config, m, seed);
      EXPECT_EQ(run_gpu_case(world, c, {.seed = seed}), "") << m << " rows on " << world_size;
    }
  }
}

// In every way, and each way compares: with a wrong reference of one number of rows none is right.
TEST(GpuCases, OneInstanceRunsEveryNumberOfRowsInGraphsAndOnTwoStreams) {
  if (cuda::num_devices() == 0) GTEST_SKIP() << "no GPU";
  std::uint64_t seed = test_seed();
  GpuWorld world({.size = 1});
  OpShape shape{.m = 133, .n = 264, .k = 200, .dtype = DType::kBF16, .target = Target::kCuda};
  std::vector<OpCase> cases = cases_of_rows(gemm_info(), shape, seed % 100'000);
  ASSERT_EQ(cases.size(), 5u);  // 133, 136, 68, 1, 0
  GpuRunOptions options{.launches = 2, .back_to_back = 20, .seed = seed};
  options.graphs = options.streams = true;
  for (bool delays : {false, true}) {
    if (delays) options.kernel.delays = KernelDelays{.seed = seed};
    GpuRunResult result = run_gpu_cases(world, cases, options);
    EXPECT_EQ(result.found, "") << "delays " << delays;
    EXPECT_EQ(result.not_captured, "");
  }
  auto out = static_cast<std::size_t>(cases[2].program.find_tensor("c"));
  cases[2].expected[0][out][5] += 100;
  EXPECT_NE(run_gpu_cases(world, cases, options).found.find("m=68: rank 0: c[5]"),
            std::string::npos);
}

// Of a kernel that takes for constant what the launch before writes, it would be wrong not to find
// it.
TEST(GpuCases, LaunchesThatStartEarlySeeWhatTheOneBeforeWrites) {
  if (cuda::num_devices() == 0) GTEST_SKIP() << "no GPU";
  std::uint64_t seed = test_seed();
  GpuWorld world({.size = 1});
  OpShape shape{.m = 133, .n = 264, .k = 200, .dtype = DType::kBF16, .target = Target::kCuda};
  std::vector<OpCase> cases = cases_of_rows(gemm_info(), shape, seed % 100'000);
  GpuRunOptions options{.launches = 2, .back_to_back = 20, .seed = seed, .graphs = true};
  options.streams = options.early = true;
  GpuRunResult result = run_gpu_cases(world, cases, options);
  EXPECT_EQ(result.found, "");
  EXPECT_TRUE(result.starts_early);
  options.kernel.constants = {"a"};
  constexpr int kMostRuns = 20;  // by lot: docs/internals/simulated_gpus.md
  int runs = 0;
  for (std::string found; found.empty() && ++runs <= kMostRuns; ++options.seed) {
    found = run_gpu_cases(world, cases, options).found;
  }
  EXPECT_LE(runs, kMostRuns) << "STRETTO_TEST_SEED=" << seed;
}

// Every dtype, ragged, and longer than what is copied at a time; weights and outputs are left
// alone.
TEST(LateInputs, TheLaunchBeforeWritesAllButConstants) {
  std::uint64_t seed = test_seed();
  SCOPED_TRACE("STRETTO_TEST_SEED=" + std::to_string(seed));
  ProgramBuilder p("sample", 2);
  Index m = p.extent("m", 137);
  const std::pair<const char*, DType> given[] = {{"x", DType::kF32},
                                                 {"y", DType::kBF16},
                                                 {"z", DType::kF16},
                                                 {"bytes", DType::kF8E4M3},
                                                 {"numbers", DType::kI32}};
  for (const auto& [name, dtype] : given) p.input(name, dtype, {m, 61}, Space::kSymmetric);
  p.state("cache", DType::kBF16, {3, m, 5});
  p.input("b_gate", DType::kBF16, {m, 61});
  auto out = p.output("out", DType::kF32, {1, 1});
  p.role("any", Resource::sms(1), p.range(1), [&](const Tile&) {
    p.store(out.tile({0, 0}, 1, 1), p.zeros(DType::kF32, 1, 1));
  });
  Program sample = p.finish();
  EXPECT_EQ(weight_inputs(sample), std::set<std::string>{"b_gate"});
  Program before = late_inputs(sample, weight_inputs(sample));
  EXPECT_LT(before.find_tensor("to_b_gate"), 0);
  EXPECT_LT(before.find_tensor("to_out"), 0);
  Proved compiled = prove(lower(before));  // proved: every element, and each once
  World world({.size = 2});
  run_program(
      world, compiled.lowered().shared(), [&](Rank& rank, Instance& instance, RankArguments& args) {
        std::map<std::string, Doubles> want;
        for (const Tensor& t : before.tensors) {
          if (t.kind != TensorKind::kInput || t.name == "idle") continue;
          Doubles values(static_cast<std::size_t>(
              num_elements(bound_shape(before, before.find_tensor(t.name)))));
          std::mt19937_64 own(seed + static_cast<std::uint64_t>(rank.index()) + values.size());
          for (double& v : values) v = static_cast<double>(own() % 9) - 4;
          args.set(t.name, values);
          want[t.name] = std::move(values);
        }
        instance.launch(args.args, args.extents);
        EXPECT_EQ(want.size(), 6u);
        for (const auto& [name, values] : want) {
          EXPECT_EQ(args.get("to_" + name.substr(5)), values) << name;
        }
      });
}

// The bound is m rounded up to 8; what is past the rows of a launch is not compared.
TEST(CasesOfRows, EachNumberComesOnce) {
  auto rows_of = [](std::int64_t m) {
    std::vector<std::int64_t> rows;
    for (const OpCase& c : cases_of_rows(gemm_info(), {.m = m, .n = 8, .k = 8}, 5)) {
      rows.push_back(c.extents.front());
      auto out = static_cast<std::size_t>(c.program.find_tensor("c"));
      const Values& want = c.expected[0][out];
      std::size_t compared =
          want.size() - static_cast<std::size_t>(std::count_if(
                            want.begin(), want.end(), [](double v) { return std::isnan(v); }));
      EXPECT_EQ(compared, static_cast<std::size_t>(rows.back() * 8));
    }
    return rows;
  };
  EXPECT_EQ(rows_of(21), (std::vector<std::int64_t>{21, 24, 12, 1, 0}));
  EXPECT_EQ(rows_of(8), (std::vector<std::int64_t>{8, 4, 1, 0}));
}

void erase_waits(Block& block) {
  std::erase_if(block, [](const Op& op) {
    return op.code == OpCode::kWait || op.code == OpCode::kConsumerTileWait;
  });
  for (Op& op : block) {
    for (Block& body : op.bodies) erase_waits(body);
  }
}

// The kernel is compiled beside the proof: a program that would race must not come out.
TEST(ProveForGpu, RefusesWhatIsNotProved) {
  if (!cuda::has_nvrtc()) GTEST_SKIP() << "no NVRTC";
  OpShape shape{.world_size = 2, .m = 16, .n = 32, .k = 32};
  Program program = ag_gemm_info().program(shape);
  EXPECT_FALSE(prove_for_gpu(lower(program)).code.image.cubin.empty());
  for (Role& role : program.roles) {
    for (Agent& agent : role.agents) erase_waits(agent.body);
  }
  EXPECT_THROW(prove_for_gpu(lower(program)), Rejected);
  EXPECT_FALSE(generate(lower(program)).image.cubin.empty());
  EXPECT_THROW(generate(lower(program), {.target = {.arch = "sm_1"}}), InternalError);
}

TEST(RanksMeet, WhereOneTellsAnother) {
  OpShape shape{.world_size = 2, .m = 16, .n = 32, .k = 32};
  EXPECT_FALSE(ranks_meet(prove(lower(gemm_info().program(shape))).program()));
  // Workers of one rank sum each other's parts.
  OpShape deep = shape;
  deep.k = 300;
  EXPECT_FALSE(ranks_meet(prove(lower(gemm_split_k_info().program(deep))).program()));
}

}  // namespace
}  // namespace stretto
