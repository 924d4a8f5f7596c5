// The dynamic witness of the proof: it must find what is planted, under every policy, and leave
// correct programs alone, or neither it nor the proof can be trusted.
#include "stretto/executor/controlled.h"

#include <gtest/gtest.h>

#include <cstring>

#include "stretto/base/test_seed.h"
#include "stretto/executor/program_runner.h"
#include "stretto/lang/program_builder.h"

namespace stretto {
namespace {

enum class Flaw { kNone, kNoReady, kNoHere, kLowThreshold, kHighThreshold };

// Every rank pushes its shard to all ranks; a second role sums what has arrived.
Program all_sum(int world, Flaw flaw, int num_slots = 1) {
  ProgramBuilder p("all_sum", world);
  auto x = p.input("x", DType::kF32, {4, 6});
  auto parts = p.buffer("parts", DType::kF32, {world * 4, 6},
                        {.space = Space::kSymmetric, .num_slots = num_slots});
  auto y = p.output("y", DType::kF32, {4, 6});
  auto ready = p.signal("ready");
  auto here = p.signal("here");
  p.on_start([&] { p.notify_all(ready); });
  p.role("push", Resource::copy_engine(), p.range(world), [&](const Tile& t) {
    Index to = (p.rank() + t.index) % world;
    if (flaw != Flaw::kNoReady) p.wait(ready, to);
    p.put(parts.on(to).tile({p.rank() * 4, 0}, 4, 6), x.tile({0, 0}, 4, 6));
    p.loop(2, [&](const Index&) { p.notify(here, to); });
  });
  p.role("sum", Resource::sms(2), p.range(2), [&](const Tile& t) {
    Value sum = p.zeros(DType::kF32, 2, 6);
    p.loop(world, [&](const Index& r) {
      int threshold = flaw == Flaw::kLowThreshold ? 0 : flaw == Flaw::kHighThreshold ? 3 : 2;
      if (flaw != Flaw::kNoHere) p.wait(here[r], threshold);
      sum = sum + p.load(parts.tile({r * 4 + t.index * 2, 0}, 2, 6));
    });
    p.store(y.tile({t.index * 2, 0}, 2, 6), sum);
  });
  return p.finish();
}

ControlledResult run(Program program, ControlledOptions options) {
  auto shared = at_schedule_level(std::move(program));
  return run_controlled(shared, count_quotas(*shared, extent_bounds(*shared)), options);
}

const SchedulePolicy kPolicies[] = {SchedulePolicy::kRandom, SchedulePolicy::kRoundRobin,
                                    SchedulePolicy::kDelayRank, SchedulePolicy::kRunAhead};

TEST(Controlled, ACorrectProgramPassesAndComputesUnderEverySchedule) {
  std::uint64_t seed = test_seed();
  SCOPED_TRACE("STRETTO_TEST_SEED=" + std::to_string(seed));
  for (int i = 0; i < 120; ++i) {
    ControlledOptions options{.launches = 3};
    options.policy = kPolicies[i % 4];
    options.seed = seed + static_cast<std::uint64_t>(i);
    options.delayed_rank = i % 3;
    options.before_launch = [](int rank, int launch, ControlledMemory& memory) {
      auto* x = reinterpret_cast<float*>(memory.data(rank, 0));
      for (int j = 0; j < 24; ++j) x[j] = static_cast<float>(rank + launch * 10 + j);
    };
    options.after_launch = [](int rank, int launch, ControlledMemory& memory) {
      auto* y = reinterpret_cast<float*>(memory.data(rank, 2));
      for (int j = 0; j < 24; ++j) ASSERT_EQ(y[j], static_cast<float>(3 + 3 * (launch * 10 + j)));
    };
    ControlledResult result = run(all_sum(3, Flaw::kNone), options);
    ASSERT_TRUE(result.ok()) << result.report;
  }
}

TEST(Controlled, ProtocolOnlyNeedsNoStorageForData) {
  ControlledOptions options{.launches = 4, .compute = false};
  options.before_launch = [](int rank, int, ControlledMemory& memory) {
    EXPECT_EQ(memory.data(rank, 0), nullptr);
  };
  ControlledResult result = run(all_sum(4, Flaw::kNone), options);
  EXPECT_TRUE(result.ok()) << result.report;
  EXPECT_GT(result.steps, 4 * 4 * 4);
}

TEST(Controlled, PlantedRacesAreFoundWithBothAccesses) {
  std::uint64_t seed = test_seed();
  SCOPED_TRACE("STRETTO_TEST_SEED=" + std::to_string(seed));
  for (Flaw flaw : {Flaw::kNoReady, Flaw::kNoHere, Flaw::kLowThreshold}) {
    for (SchedulePolicy policy : kPolicies) {
      bool found = false;
      for (std::uint64_t i = 0; i < 20 && !found; ++i) {
        ControlledOptions options{.launches = 3, .policy = policy, .seed = seed + i};
        options.delayed_rank = static_cast<int>(i % 2);
        ControlledResult result = run(all_sum(2, flaw), options);
        if (!result.race) continue;
        found = true;
        EXPECT_NE(result.report.find("'parts'"), std::string::npos) << result.report;
        EXPECT_NE(result.report.find("push"), std::string::npos) << result.report;
        EXPECT_NE(result.report.find("sum"), std::string::npos) << result.report;
        EXPECT_NE(result.report.find("controlled_test.cc"), std::string::npos) << result.report;
      }
      EXPECT_TRUE(found) << "flaw " << static_cast<int>(flaw) << " policy "
                         << static_cast<int>(policy);
    }
  }
}

// Without a handshake a peer may be one launch ahead, but not two: two slots are enough, one is
// not.
TEST(Controlled, TwoSlotsReplaceTheHandshake) {
  auto races = [&](int num_slots) {
    auto shared = at_schedule_level(all_sum(2, Flaw::kNoReady, num_slots));
    Quotas quotas = count_quotas(*shared, {});
    for (std::uint64_t seed = 1; seed <= 60; ++seed) {
      ControlledOptions options{.launches = 5, .seed = seed};
      if (run_controlled(shared, quotas, options).race) return true;
    }
    return false;
  };
  EXPECT_TRUE(races(1));
  EXPECT_FALSE(races(2));
}

TEST(Controlled, AnUnreachableThresholdIsADeadlockThatNamesTheWait) {
  ControlledResult result = run(all_sum(2, Flaw::kHighThreshold), {.launches = 1});
  EXPECT_TRUE(result.deadlock);
  EXPECT_NE(result.report.find("here"), std::string::npos) << result.report;
  EXPECT_NE(result.report.find("controlled_test.cc"), std::string::npos) << result.report;
}

TEST(Controlled, AnInputReadByAPeerMustOutliveTheLaunch) {
  // The neighbour reads my input, and nothing keeps my launch from ending before it has.
  ProgramBuilder p("early_end", 2);
  auto x = p.input("x", DType::kF32, {2, 2}, Space::kSymmetric);
  auto y = p.output("y", DType::kF32, {2, 2});
  auto ready = p.signal("ready");
  p.role("pull", Resource::copy_engine(), p.range(1), [&](const Tile&) {
    Index other = 1 - p.rank();
    p.notify(ready, other);
    p.wait(ready, other);
    p.get(y.tile({0, 0}, 2, 2), x.on(other).tile({0, 0}, 2, 2));
  });
  auto shared = at_schedule_level(p.finish());
  bool found = false;
  for (std::uint64_t seed = 1; seed <= 40 && !found; ++seed) {
    ControlledOptions options{.launches = 2, .seed = seed};
    ControlledResult result = run_controlled(shared, count_quotas(*shared, {}), options);
    found = result.race && result.report.find("the caller") != std::string::npos;
  }
  EXPECT_TRUE(found);
}

// As the definition has it, and the proof.
TEST(Controlled, ACopyReadsNoMoreThanItsDestinationHasRoomFor) {
  for (std::int64_t room : {2, 3}) {
    ProgramBuilder p("cut_copy", 1);
    auto x = p.state("x", DType::kF32, {4, 8});
    auto y = p.output("y", DType::kF32, {room, 8});
    p.role("copy", Resource::sms(1), p.range(1),
           [&](const Tile&) { p.copy(y.tile({0, 0}, 4, 8), x.tile({0, 0}, 4, 8)); });
    p.role("write", Resource::sms(1), p.range(1),
           [&](const Tile&) { p.store(x.tile({2, 0}, 2, 8), p.zeros(DType::kF32, 2, 8)); });
    auto shared = at_schedule_level(p.finish());
    bool raced = false;
    for (std::uint64_t seed = 1; seed <= 20; ++seed) {
      ControlledOptions options{.launches = 1, .seed = seed};
      raced = raced || run_controlled(shared, count_quotas(*shared, {}), options).race;
    }
    EXPECT_EQ(raced, room == 3);
  }
}

TEST(Controlled, TheCallerMayChooseEveryStep) {
  std::vector<int> order;
  ControlledOptions options{.launches = 1};
  options.choose = [&](std::span<const ScheduleChoice> choices) {
    order.push_back(choices.back().rank);
    return choices.size() - 1;
  };
  EXPECT_TRUE(run(all_sum(2, Flaw::kNone), options).ok());
  EXPECT_EQ(order.front(), 1);
  options.choose = [](std::span<const ScheduleChoice> choices) { return choices.size(); };
  EXPECT_THROW(run(all_sum(2, Flaw::kNone), options), UserError);
}

}  // namespace
}  // namespace stretto
