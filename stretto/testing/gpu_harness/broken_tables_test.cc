// A table of a real operator that breaks its contract on one of two GPUs, or simulated ones: the
// launch ends on both at once and says which table, entry and rank it was, and afterwards the world
// is as good as new. A user who loses this reads results of experts that do not exist, or waits for
// the deadline and hears of a signal.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "stretto/base/test_seed.h"
#include "stretto/ops/attention/packed_attention.h"
#include "stretto/ops/attention/paged_decode.h"
#include "stretto/ops/moe/ag_grouped_gemm.h"
#include "stretto/ops/moe/combine.h"
#include "stretto/ops/moe/ep_moe_layer.h"
#include "stretto/ops/moe/ep_return.h"
#include "stretto/ops/moe/ep_send.h"
#include "stretto/ops/moe/grouped_gemm_rs.h"
#include "stretto/ops/moe/moe_layer.h"
#include "stretto/runtime/cuda/driver.h"
#include "stretto/runtime/processes/launch.h"
#include "stretto/runtime/processes/bootstrap_address.h"
#include "stretto/runtime/world.h"
#include "stretto/testing/cases/cases.h"
#include "stretto/testing/gpu_harness/gpu_case.h"

namespace stretto {
namespace {

constexpr int kRanks = 2;
// Much longer than a launch takes, simulated ones included: who ends by it is late.
constexpr std::chrono::seconds kTimeout{20};

struct Entry {
  const char* table;
  std::size_t entry;
  std::int64_t value;
};

struct Operator {
  OperatorInfo info;
  std::vector<Entry> broken;
};

// Of shapes with at most 24 tokens, 6 experts and 24 pages.
std::vector<Operator> operators() {
  constexpr std::int64_t kMuch = 1'000'000;
  return {{ag_grouped_gemm_info(),
           {{"tile_experts", 1, 5}, {"tiles_used", 0, kMuch}, {"row_tokens", 2, kMuch}}},
          {moe_layer_info(), {{"tile_experts", 0, -1}, {"tile_needs", 0, 3}, {"slots", 3, kMuch}}},
          {grouped_gemm_rs_info(), {{"slots", 3, kMuch}, {"slots", 0, -1}}},
          {grouped_gemm_ar_info(), {{"slots", 1, kMuch}, {"tile_experts", 0, 5}}},
          {ep_send_info(), {{"experts", 4, 5}, {"experts", 0, -1}}},
          {ep_return_info(), {{"slots", 3, kMuch}, {"positions", 2, -2}}},
          {ep_moe_layer_info(), {{"experts", 4, 5}, {"experts", 0, -1}}},
          {moe_combine_info(), {{"slots", 5, kMuch}}},
          {paged_decode_info(), {{"pages", 5, kMuch}, {"tokens", 1, -1}}},
          {packed_attention_info(), {{"starts", 2, -1}, {"starts", 4, kMuch}}}};
}

// What the last launch left on a rank where its tables were right, "" where as expected.
std::string found_on(const OpCase& c, const GpuCaseMemory& memory, int rank) {
  std::string found = compare_case(c, rank, [&](std::size_t t) { return memory.view(rank, t); });
  return found.empty() ? memory.check_guards(rank) : found;
}

OpCase case_of(const OperatorInfo& op, std::uint64_t seed) {
  OpShape shape = op.shapes(kRanks).front();
  for (const OpShape& s : op.shapes(kRanks)) {
    if (s.dtype == DType::kBF16 && s.m < 64) shape = s;
  }
  shape.target = Target::kCuda;
  shape.rows = shape.m;
  return make_case(op, shape, seed);
}

// An operator on the ranks of this process.
class Launches {
 public:
  // `recover` clears the world's fault.
  Launches(GpuWorld& world, const OpCase& right, std::function<void()> recover)
      : world_(world),
        right_(right),
        recover_(std::move(recover)),
        compiled_(
            waive_proof(lower(right.program), "its tables break their contracts", world.target())),
        executable_(
            load(compiled_, world, generate(compiled_.lowered(), {.target = world.target()}))),
        memory_(world, right) {}

  void expect_right(const char* when) {
    memory_.restore();
    launch(memory_);
    executable_->wait();
    memory_.download();
    for (int r : world_.local_ranks()) EXPECT_EQ(found_on(right_, memory_, r), "") << when;
  }

  void expect_fault(const Entry& e, int culprit) {
    SCOPED_TRACE(fmt::format("{}: {}[{}] = {} on rank {}", right_.program.name, e.table, e.entry,
                             e.value, culprit));
    OpCase wrong = right_;
    const auto table = static_cast<std::size_t>(wrong.program.find_tensor(e.table));
    wrong.inputs[static_cast<std::size_t>(culprit)].at(table).at(e.entry) =
        static_cast<double>(e.value);
    GpuCaseMemory broken(world_, wrong);
    const bool here = is_local(culprit);
    const auto begin = std::chrono::steady_clock::now();
    bool faulted = false;
    try {
      launch(broken);
      executable_->wait();
    } catch (const Fault& fault) {
      faulted = true;
      expect_named(fault, e, culprit);
    }
    world_.synchronize();
    // Who has nothing to do with the broken rank, or had all it needed of it, has ended well.
    EXPECT_TRUE(faulted || !here);
    EXPECT_LT(std::chrono::steady_clock::now() - begin, kTimeout) << "ended by the deadline";
    broken.download();
    for (int r : world_.local_ranks()) {
      EXPECT_EQ(broken.check_guards(r), "");
      const bool alone = !ranks_meet(compiled_.program());
      if (r == culprit || (!alone && faulted)) continue;
      EXPECT_EQ(found_on(wrong, broken, r), "");
    }
    if (here) {
      EXPECT_THROW(launch(memory_), Fault) << "a world with a fault";
    }
    recover_();
    executable_->recover();
    expect_right("recovered");
  }

 private:
  void launch(const GpuCaseMemory& memory) {
    executable_->prepare(memory.args())->run(memory.extents());
  }
  bool is_local(int rank) const {
    const std::vector<int>& local = world_.local_ranks();
    return std::find(local.begin(), local.end(), rank) != local.end();
  }
  void expect_named(const Fault& fault, const Entry& e, int culprit) const {
    const FaultRecord& record = fault.record();
    EXPECT_EQ(record.rank, culprit) << fault.what();
    EXPECT_EQ(record.program, right_.program.name) << fault.what();
    for (const std::string& words : {fmt::format("table '{}' breaks its contract", e.table),
                                     fmt::format("entry {} is {}", e.entry, e.value)}) {
      EXPECT_NE(record.reason.find(words), std::string::npos) << words << "\n" << fault.what();
    }
  }

  GpuWorld& world_;
  const OpCase& right_;
  std::function<void()> recover_;
  Proved compiled_;
  std::unique_ptr<Executable> executable_;
  GpuCaseMemory memory_;
};

class BrokenTables : public testing::TestWithParam<std::size_t> {};

TEST_P(BrokenTables, EndTheLaunchOnBothRanksWithTheTableAndItsEntry) {
  if (!cuda::has_driver() || cuda::num_devices() < kRanks) GTEST_SKIP() << "needs two GPUs";
  const Operator op = operators()[GetParam()];
  const std::uint64_t seed = test_seed() % 100'000;
  SCOPED_TRACE(fmt::format("STRETTO_TEST_SEED={}", seed));
  const OpCase right = case_of(op.info, seed);
  GpuWorld world({.size = kRanks, .timeout = kTimeout});
  Launches launches(world, right, [&] { world.clear_fault(); });
  launches.expect_right("before");
  for (const Entry& e : op.broken) {
    for (int culprit = 0; culprit < kRanks; ++culprit) launches.expect_fault(e, culprit);
  }
}

INSTANTIATE_TEST_SUITE_P(OfOperators, BrokenTables,
                         testing::Range(std::size_t{0}, operators().size()),
                         [](const auto& info) { return operators()[info.param].info.name; });

// The same where every rank is a process: one of those that the test below starts.
TEST(BrokenTablesOfProcesses, OneRank) {
  const auto at = bootstrap_address_of_environment();
  if (!at) GTEST_SKIP() << "started by the next test";
  ::alarm(240);                                      // whatever hangs
  const std::uint64_t seed = test_seed() % 100'000;  // of STRETTO_TEST_SEED: that of all ranks
  SCOPED_TRACE(fmt::format("STRETTO_TEST_SEED={}", seed));
  World host(ProcessWorldOptions{.bootstrap = *at, .timeout = std::chrono::seconds{60}});
  GpuWorld world(host.local_rank(), {.timeout = kTimeout});
  for (const Operator& op : operators()) {
    const OpCase right = case_of(op.info, seed);
    Launches launches(world, right, [&] {
      host.recover();
      world.clear_fault();
    });
    launches.expect_right("before");
    for (int culprit = 0; culprit < kRanks; ++culprit) {
      launches.expect_fault(op.broken.front(), culprit);
    }
  }
}

TEST(BrokenTablesOfProcesses, EndTheLaunchOfBothAndTheWorldRecovers) {
  if (!cuda::has_driver() || cuda::num_devices() < kRanks) GTEST_SKIP() << "needs two GPUs";
  ASSERT_EQ(::setenv("STRETTO_TEST_SEED", std::to_string(test_seed()).c_str(), 1), 0);
  const std::string own = std::filesystem::read_symlink("/proc/self/exe").string();
  LaunchOptions two{.num_processes = kRanks,
                    .command = {own, "--gtest_filter=BrokenTablesOfProcesses.OneRank"}};
  EXPECT_EQ(launch_processes(two), 0);
}

}  // namespace
}  // namespace stretto
