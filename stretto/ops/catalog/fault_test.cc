// A rank dies or stalls in the middle of an operator. If these fail, one lost rank means a hang for
// everybody, a fault that names the wrong culprit, or a world that must be thrown away.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <set>
#include <thread>

#include "stretto/base/test_seed.h"
#include "stretto/ops/catalog/catalog.h"
#include "stretto/testing/cases/cases.h"
#include "stretto/testing/harness/case_data.h"
#include "stretto/testing/harness/case_memory.h"

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
      : c(op_case), compiled(prove(lower(c.program))), world({.size = kWorld, .timeout = timeout}) {
    first.resize(kWorld);
    memory.resize(kWorld);
    loaded.resize(kWorld);
    hooks.resize(kWorld);
    world.run([&](Rank& rank) {
      auto r = static_cast<std::size_t>(rank.index());
      first[r] = tensors_at_first(c, rank.index());
      memory[r] = std::make_unique<CaseMemory>(rank, c);
      loaded[r] = load(compiled, rank, {.sync_hook = [&hook = hooks[r]](const SyncPoint& at) {
                         if (hook) hook(at);
                       }});
    });
  }

  // What each rank's launch threw: "" where it ended well. Without the last rank where it does not
  // come.
  std::vector<std::string> launch_all(int* num_faults, bool last_comes = true) {
    std::vector<std::string> thrown(kWorld);
    std::mutex mutex;
    ended = 0;
    try {
      world.run([&](Rank& rank) {
        if (!last_comes && rank.index() == kWorld - 1) return;
        auto r = static_cast<std::size_t>(rank.index());
        memory[r]->take(first[r], c.extents);
        try {
          memory[r]->launch(*loaded[r]);
          ++ended;
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

  // "" where the last launch left what is expected, state included.
  std::string difference() const {
    std::string found;
    for (int r = 0; r < kWorld && found.empty(); ++r) {
      const CaseMemory& of_rank = *memory[static_cast<std::size_t>(r)];
      found = compare_case(c, r, [&](std::size_t t) { return of_rank.view(t); });
    }
    return found;
  }

  OpCase c;
  Proved compiled;
  World world;
  std::vector<TensorsAtFirst> first;
  std::vector<std::unique_ptr<CaseMemory>> memory;
  std::vector<SyncHook> hooks;  // of each rank, or none
  std::vector<std::unique_ptr<Executable>> loaded;
  std::atomic<int> ended{0};  // launches of the last launch_all that ended well
};

// With so short a deadline, or the first longer one in which this machine makes it ready.
std::unique_ptr<Ready> ready_within(const OpCase& c, std::chrono::milliseconds deadline) {
  for (;; deadline *= 2) {
    try {
      return std::make_unique<Ready>(c, deadline);
    } catch (const Fault&) {
      if (deadline > std::chrono::minutes(1)) throw;
    }
  }
}

class Faults : public testing::TestWithParam<std::string> {
 protected:
  OpCase make() const {
    const OperatorInfo& op = *find_operator(GetParam());
    return make_case(op, op.shapes(kWorld).front(), 0);
  }
};

TEST_P(Faults, ADyingRankEndsTheLaunchEverywhereAndTheWorldRecovers) {
  Ready ready(make(), std::chrono::seconds(60));
  bool synchronises = false;
  ready.hooks[kVictim] = [&](const SyncPoint&) {
    synchronises = true;
    throw Death("the victim died");
  };
  int faults = 0;
  std::vector<std::string> thrown = ready.launch_all(&faults);
  const bool meet = ranks_meet(ready.compiled.program());
  EXPECT_TRUE(faults > 0 || !meet);
  if (!synchronises) {
    EXPECT_EQ(ready.difference(), "");
    return;
  }
  EXPECT_TRUE(ready.world.faulted());
  for (int r = 0; r < kWorld; ++r) {
    if (r == kVictim || thrown[static_cast<std::size_t>(r)].empty()) continue;
    EXPECT_NE(thrown[static_cast<std::size_t>(r)].find("rank 1 died"), std::string::npos)
        << thrown[static_cast<std::size_t>(r)];
  }
  ready.hooks[kVictim] = {};
  ready.world.recover();
  faults = 0;
  for (int launch = 0; launch < 3; ++launch) {
    ready.launch_all(&faults);
    EXPECT_EQ(ready.difference(), "") << "launch " << launch;
  }
  EXPECT_EQ(faults, 0);
}

// The victim stands still until the others have aborted or have done all that they can without it.
TEST_P(Faults, AStallingRankIsNamedAtTheDeadline) {
  std::unique_ptr<Ready> made = ready_within(make(), std::chrono::milliseconds(300));
  Ready& ready = *made;
  std::atomic<bool> stalled{false};
  ready.hooks[kVictim] = [&](const SyncPoint&) {
    if (stalled.exchange(true)) return;
    while (!ready.world.faulted() && ready.ended < kWorld - 1) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  };
  int faults = 0;
  ready.launch_all(&faults);
  EXPECT_EQ(ready.world.faulted(), ranks_meet(ready.compiled.program()));
  if (ready.world.faulted()) {
    FaultRecord record = ready.world.fault();
    EXPECT_EQ(record.program, ready.c.program.name);
    EXPECT_FALSE(record.role.empty());
    EXPECT_LT(record.seen, record.expected);
  } else {
    EXPECT_EQ(faults, 0);
    EXPECT_EQ(ready.difference(), "");
  }
  ready.hooks[kVictim] = {};
  // On a busy machine a rank may be late again, but not each time.
  for (int tries = 0; tries < 10; ++tries) {
    ready.world.recover();
    faults = 0;
    ready.launch_all(&faults);
    if (faults == 0) break;
  }
  EXPECT_EQ(faults, 0);
  EXPECT_EQ(ready.difference(), "");
}

// What GPUs are expected to notice, too (gpu_case.h: stall_gpu_cases), of the programs that they
// run.
TEST_P(Faults, ARankThatDoesNotComeIsNoticedWhereRanksMeet) {
  const OperatorInfo& op = *find_operator(GetParam());
  std::set<bool> tried;  // a shape where ranks meet, and one where they do not
  for (OpShape shape : op.shapes(kWorld)) {
    shape.target = Target::kCuda;
    OpCase c = make_case(op, shape, 0);
    bool meet = ranks_meet(prove(lower(c.program)).program());
    if (!tried.insert(meet).second) continue;
    std::unique_ptr<Ready> ready = ready_within(c, std::chrono::milliseconds(300));
    int faults = 0;
    ready->launch_all(&faults, /*last_comes=*/false);
    EXPECT_EQ(ready->world.faulted(), meet) << c.config;
  }
}

std::vector<std::string> faulting_operators() {
  std::vector<std::string> names;
  for (const OperatorInfo& op : catalog()) names.emplace_back(op.name);
  return names;
}

INSTANTIATE_TEST_SUITE_P(AllOperators, Faults, testing::ValuesIn(faulting_operators()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace stretto
