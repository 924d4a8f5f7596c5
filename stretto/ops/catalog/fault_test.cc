// A rank dies or stalls in the middle of an operator. If these fail, one lost rank means a hang for
// everybody, a fault that names the wrong culprit, or a world that must be thrown away.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <memory>
#include <mutex>
#include <set>
#include <thread>

#include "stretto/base/test_seed.h"
#include "stretto/compiler.h"
#include "stretto/ops/catalog/catalog.h"
#include "stretto/ops/harness/case_data.h"
#include "stretto/ops/harness/case_memory.h"

namespace stretto {
namespace {

constexpr int kWorld = 3;
constexpr int kVictim = 1;

struct Death : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// One operator made ready on every rank of a world, which outlives faults.
struct Ready {
  explicit Ready(const OpCase& op_case, std::chrono::milliseconds timeout)
      : c(op_case), compiled(compile(c.program)), world({.size = kWorld, .timeout = timeout}) {
    memory.resize(kWorld);
    instances.resize(kWorld);
    world.run([&](Rank& rank) {
      auto r = static_cast<std::size_t>(rank.index());
      memory[r] = std::make_unique<CaseMemory>(rank, c);
      instances[r] = std::make_unique<Instance>(rank, compiled.schedule, compiled.quotas);
    });
  }

  // What each rank's launch threw: "" where it ended well. Without the last rank where it does not
  // come.
  std::vector<std::string> launch_all(int* num_faults, bool last_comes = true) {
    std::vector<std::string> thrown(kWorld);
    std::mutex mutex;
    try {
      world.run([&](Rank& rank) {
        if (!last_comes && rank.index() == kWorld - 1) return;
        auto r = static_cast<std::size_t>(rank.index());
        memory[r]->poison_outputs();
        try {
          instances[r]->launch(memory[r]->args());
        } catch (const Fault& fault) {
          std::lock_guard lock(mutex);
          thrown[r] = fault.what();
          ++*num_faults;
          throw;
        }
      });
    } catch (const std::exception&) {
    }
    return thrown;
  }

  bool correct() const {
    for (std::size_t r = 0; r < kWorld; ++r) {
      for (std::size_t t = 0; t < c.expected[r].size(); ++t) {
        if (c.program.tensors[t].kind == TensorKind::kState) continue;
        for (std::size_t i = 0; i < c.expected[r][t].size(); ++i) {
          double want = c.expected[r][t][i];
          double allowed = c.tolerance * (std::fabs(want) + c.scale);
          if (!std::isnan(want) && !(std::fabs(memory[r]->element(t, i) - want) <= allowed))
            return false;
        }
      }
    }
    return true;
  }

  OpCase c;
  CompiledProgram compiled;
  World world;
  std::vector<std::unique_ptr<CaseMemory>> memory;
  std::vector<std::unique_ptr<Instance>> instances;
};

class Faults : public testing::TestWithParam<std::string> {
 protected:
  OpCase make() const {
    const OperatorInfo& op = *find_operator(GetParam());
    return op.make_case(op.shapes(kWorld).front(), 0);
  }
};

TEST_P(Faults, ADyingRankEndsTheLaunchEverywhereAndTheWorldRecovers) {
  Ready ready(make(), std::chrono::seconds(20));
  bool communicates = false;
  ready.instances[kVictim]->set_sync_hook([&](const Instance::SyncPoint&) {
    communicates = true;
    throw Death("the victim died");
  });
  int faults = 0;
  auto begin = std::chrono::steady_clock::now();
  std::vector<std::string> thrown = ready.launch_all(&faults);
  if (!communicates) GTEST_SKIP() << "this operator never synchronises";
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(15));
  EXPECT_TRUE(ready.world.faulted());
  for (int r = 0; r < kWorld; ++r) {
    if (r == kVictim || thrown[static_cast<std::size_t>(r)].empty()) continue;
    EXPECT_NE(thrown[static_cast<std::size_t>(r)].find("rank 1 died"), std::string::npos)
        << thrown[static_cast<std::size_t>(r)];
  }
  ready.instances[kVictim]->set_sync_hook({});
  ready.world.recover();
  faults = 0;
  for (int launch = 0; launch < 3; ++launch) ready.launch_all(&faults);
  EXPECT_EQ(faults, 0);
  EXPECT_TRUE(ready.correct());
}

TEST_P(Faults, AStallingRankIsNamedWithinTheDeadline) {
  Ready ready(make(), std::chrono::milliseconds(150));
  bool stalled = false;
  ready.instances[kVictim]->set_sync_hook([&](const Instance::SyncPoint&) {
    if (!stalled) std::this_thread::sleep_for(std::chrono::milliseconds(600));
    stalled = true;
  });
  int faults = 0;
  ready.launch_all(&faults);
  if (!stalled) GTEST_SKIP() << "this operator never synchronises";
  if (ready.world.faulted()) {
    FaultRecord record = ready.world.fault();
    EXPECT_EQ(record.program, ready.c.program.name);
    EXPECT_FALSE(record.role.empty());
    EXPECT_LT(record.seen, record.expected);
  } else {
    EXPECT_EQ(faults, 0);  // nobody depended on the victim for that long
  }
  ready.instances[kVictim]->set_sync_hook({});
  ready.world.recover();
  faults = 0;
  for (int launch = 0; launch < 2; ++launch) ready.launch_all(&faults);
  EXPECT_EQ(faults, 0);
  EXPECT_TRUE(ready.correct());
}

// What GPUs are expected to notice, too (gpu_case.h: stall_gpu_cases), of the programs that they
// run.
TEST_P(Faults, ARankThatDoesNotComeIsNoticedWhereRanksMeet) {
  const OperatorInfo& op = *find_operator(GetParam());
  std::set<bool> tried;  // a shape where ranks meet, and one where they do not
  for (OpShape shape : op.shapes(kWorld)) {
    shape.target = Target::kCuda;
    OpCase c = op.make_case(shape, 0);
    bool meet = ranks_meet(*compile(c.program).schedule);
    if (!tried.insert(meet).second) continue;
    Ready ready(c, std::chrono::milliseconds(300));
    int faults = 0;
    ready.launch_all(&faults, /*last_comes=*/false);
    EXPECT_EQ(ready.world.faulted(), meet) << c.config;
  }
}

std::vector<std::string> operator_names() {
  std::vector<std::string> names;
  for (const OperatorInfo& op : catalog()) names.emplace_back(op.name);
  return names;
}

INSTANTIATE_TEST_SUITE_P(AllOperators, Faults, testing::ValuesIn(operator_names()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace stretto
