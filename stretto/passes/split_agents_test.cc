// Splitting a role into agents must not change a bit of what it computes, and must leave nothing
// that the proof would let pass when it is taken away. A user who loses this gets faster kernels
// with wrong results.
#include "stretto/passes/split_agents.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <random>
#include <set>
#include <string_view>

#include "stretto/base/test_errors.h"
#include "stretto/base/test_seed.h"
#include "stretto/executor/controlled.h"
#include "stretto/executor/program_runner.h"
#include "stretto/ir/parser.h"
#include "stretto/ir/printer.h"
#include "stretto/passes/pipeline.h"
#include "stretto/passes/split_samples.h"
#include "stretto/passes/split_survey.h"

namespace stretto::split_agents_test {
namespace {

using split_samples::ag_gemm, split_samples::attention, split_samples::gemm, split_samples::grouped,
    split_samples::handed_on, split_samples::no_dot, split_samples::own_writes,
    split_samples::packets, split_samples::picks_handed_on, split_samples::pushed,
    split_samples::residual, split_samples::summed_rows, split_samples::table_loop;
using split_samples::GemmOptions, split_samples::kK, split_samples::kM, split_samples::kN;

std::shared_ptr<const Program> scheduled(Program program) {
  return std::make_shared<const Program>(run_pipeline(std::move(program)));
}

int count_ops(const Block& block, OpCode code) {
  int n = 0;
  for (const Op& op : block) {
    n += op.code == code;
    for (const Block& body : op.bodies) n += count_ops(body, code);
  }
  return n;
}

const Role& role_named(const Program& program, std::string_view name) {
  for (const Role& role : program.roles) {
    if (role.name == name) return role;
  }
  throw InternalError("no role " + std::string(name));
}

// Whole numbers, so that sums are exact in any order.
Doubles whole_numbers(std::int64_t n, std::mt19937_64& random) {
  Doubles v(static_cast<std::size_t>(n));
  for (double& x : v) x = static_cast<double>(random() % 9) - 4;
  return v;
}

// Elements past the run-time shape are poison, and NaN is unequal to itself.
bool same_bits(const std::vector<Doubles>& a, const std::vector<Doubles>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const Doubles& x, const Doubles& y) {
    return x.size() == y.size() && std::memcmp(x.data(), y.data(), 8 * x.size()) == 0;
  });
}

class SplitAgents : public testing::Test {
 protected:
  // Two launches on every rank, inputs alike on all ranks; [rank][element] of the output "c".
  std::vector<Doubles> run(const std::shared_ptr<const Program>& program,
                           const std::map<std::string, Doubles>& inputs,
                           const std::vector<std::int64_t>& extents = {}) {
    std::vector<Doubles> c(static_cast<std::size_t>(program->world_size));
    World world({.size = program->world_size});
    run_program(world, program, [&](Rank& rank, Instance& instance, RankArguments& arguments) {
      for (const auto& [name, values] : inputs) arguments.set(name, values);
      if (!extents.empty()) arguments.extents = extents;
      for (int e = 0; e < 2; ++e) instance.launch(arguments.args, arguments.extents);
      c[static_cast<std::size_t>(rank.index())] = arguments.get("c");
    });
    return c;
  }
  Doubles numbers(std::int64_t n) { return whole_numbers(n, random_); }

  std::uint64_t seed_ = test_seed();
  std::mt19937_64 random_{seed_};
  testing::ScopedTrace trace_{__FILE__, __LINE__, "STRETTO_TEST_SEED=" + std::to_string(seed_)};
};

Doubles gemm_reference(const Doubles& a, const Doubles& b, std::int64_t k) {
  Doubles c;
  for (std::int64_t i = 0; i < kM; ++i) {
    for (std::int64_t j = 0; j < kN; ++j) {
      double sum = 0;
      for (std::int64_t l = 0; l < k; ++l) {
        sum += a[static_cast<std::size_t>(i * kK + l)] * b[static_cast<std::size_t>(j * kK + l)];
      }
      c.push_back(sum);
    }
  }
  return c;
}

TEST_F(SplitAgents, GemmComputesTheSameBits) {
  for (bool two : {false, true}) {
    for (bool copies : {false, true}) {
      for (int stages : {2, 3, 5}) {
        auto whole = scheduled(gemm({.two_products = two, .keep_copies = copies}));
        auto split =
            scheduled(gemm({.num_stages = stages, .two_products = two, .keep_copies = copies}));
        ASSERT_EQ(whole->roles[0].agents.size(), 1u);
        ASSERT_EQ(split->roles[0].agents.size(), 2u);
        EXPECT_EQ(split->roles[0].pipes.size(), two ? 3u : 2u);
        EXPECT_EQ(split->roles[0].pipes[0].num_slots, stages);
        for (std::int64_t k : {kK, std::int64_t{1}, std::int64_t{0}, std::int64_t{16}}) {
          Doubles a = numbers(kM * kK), b = numbers(kN * kK), g = numbers(kN * kK);
          std::map<std::string, Doubles> inputs = {{"a", a}, {"b", b}, {"g", g}};
          Doubles want = gemm_reference(a, b, k), gate = gemm_reference(a, g, k);
          for (std::size_t i = 0; two && i < want.size(); ++i) want[i] *= gate[i];
          EXPECT_EQ(run(whole, inputs, {k})[0], want) << "k " << k;
          EXPECT_EQ(run(split, inputs, {k})[0], want) << "k " << k << " stages " << stages << "\n"
                                                      << print(*split);
        }
      }
    }
  }
}

TEST_F(SplitAgents, OneIterationStaysInFlightWhereNothingElseTouchesTheAccumulator) {
  auto awaits = [](const GemmOptions& options) {
    std::vector<std::int64_t> depths;
    std::function<void(const Block&)> visit = [&](const Block& block) {
      for (const Op& op : block) {
        if (op.code == OpCode::kAwait) depths.push_back(op.exprs[0].const_value());
        for (const Block& body : op.bodies) visit(body);
      }
    };
    visit(scheduled(gemm(options))->roles[0].agents[1].body);
    return depths;
  };
  EXPECT_EQ(awaits({.num_stages = 3}), (std::vector<std::int64_t>{1, 0}));
  EXPECT_EQ(awaits({.num_stages = 3, .two_products = true}), (std::vector<std::int64_t>{2, 0}));
  // A copy reads the slot before the dot does: with two slots nothing may be left pending.
  EXPECT_EQ(awaits({.num_stages = 2, .keep_copies = true}), (std::vector<std::int64_t>{0}));
}

// The producer picks the rows, so the consumer does not know the index any more; and the text form
// keeps by which register a slot is filled.
TEST_F(SplitAgents, PickedRowsAndVectorsGoThroughPipes) {
  auto whole = scheduled(split_samples::picked(0)), split = scheduled(split_samples::picked(3));
  const std::vector<Agent>& agents = split->roles[0].agents;
  ASSERT_EQ(agents.size(), 2u) << print(*split);
  EXPECT_EQ(split->roles[0].pipes.size(), 3u) << print(*split);
  EXPECT_EQ(count_ops(agents[0].body, OpCode::kLoad), 1);
  EXPECT_EQ(count_ops(agents[1].body, OpCode::kLoad), 0);
  EXPECT_EQ(print(parse(print(*split), "split")), print(*split));
  Doubles a = numbers(12 * 8), b = numbers(4 * 8), scale = numbers(8 * 2);
  std::map<std::string, Doubles> inputs = {
      {"a", a}, {"b", b}, {"scale", scale}, {"rows", {3, 11, -1, 0, 3, 7, 5, -1}}};
  Doubles want;
  for (std::size_t i = 0; i < 8; ++i) {
    double row = inputs["rows"][i];
    for (std::size_t j = 0; j < 4; ++j) {
      double sum = 0;
      for (std::size_t l = 0; row >= 0 && l < 8; ++l) {
        sum += a[static_cast<std::size_t>(row) * 8 + l] * b[j * 8 + l] * scale[i * 2 + l / 4];
      }
      want.push_back(sum);
    }
  }
  EXPECT_EQ(run(whole, inputs)[0], want);
  EXPECT_EQ(run(split, inputs)[0], want) << print(*split);
}

TEST_F(SplitAgents, TheProducerComputesAnIndex) {
  auto whole = scheduled(split_samples::picked_by_pairs(0));
  auto split = scheduled(split_samples::picked_by_pairs(3));
  const Role& role = split->roles[0];
  ASSERT_EQ(role.agents.size(), 2u) << SplitSurvey(*whole, whole->roles[0]).obstacle();
  ASSERT_EQ(role.pipes.size(), 1u) << "of rows, not of numbers: " << print(*split);
  EXPECT_EQ(count_ops(role.agents[0].body, OpCode::kLoadRows), 1);
  EXPECT_EQ(count_ops(role.agents[1].body, OpCode::kLoadRows), 0) << print(*split);
  EXPECT_EQ(count_ops(role.agents[1].body, OpCode::kIota), 1) << "the consumer asks who exists";
  EXPECT_EQ(print(parse(print(*split), "split")), print(*split));
  Doubles rows = {5, 19, 5, 0, 1, 1, 2, 7, 3, 7, 8, 18, 0, 4};
  std::map<std::string, Doubles> inputs = {{"a", numbers(20 * 16)}, {"numbers", rows}};
  Doubles want;
  for (std::size_t i = 0; i < 7 * 16; ++i) {
    want.push_back(2 * inputs["a"][static_cast<std::size_t>(rows[i / 16 * 2 + 1]) * 16 + i % 16]);
  }
  EXPECT_EQ(run(whole, inputs)[0], want);
  EXPECT_EQ(run(split, inputs)[0], want) << print(*split);
}

// take_turns: a producer and consumers that each take every other tile, also where the last turn
// has none.
TEST_F(SplitAgents, ConsumersInTurnComputeTheSameBits) {
  auto whole = scheduled(gemm({}));
  for (int consumers : {2, 3}) {
    auto turns = scheduled(gemm({.num_stages = 2, .num_consumers = consumers}));
    auto count = static_cast<std::size_t>(consumers);
    ASSERT_EQ(turns->roles[0].agents.size(), 1 + count);
    EXPECT_EQ(turns->roles[0].pipes.size(), 2 * count);
    for (std::int64_t k : {kK, std::int64_t{1}, std::int64_t{0}}) {
      std::map<std::string, Doubles> inputs = {{"a", numbers(kM * kK)}, {"b", numbers(kN * kK)}};
      EXPECT_EQ(run(turns, inputs, {k}), run(whole, inputs, {k})) << "k " << k;
    }
  }
}

TEST_F(SplitAgents, AgGemmComputesTheSameBitsAndWaitsInTheProducer) {
  for (int world : {1, 2, 3}) {
    auto whole = scheduled(ag_gemm(world, 0)), split = scheduled(ag_gemm(world, 2));
    std::map<std::string, Doubles> inputs = {{"a", numbers(5 * 20)}, {"b", numbers(9 * 20)}};
    EXPECT_EQ(run(split, inputs), run(whole, inputs)) << "world " << world;
    const Role& role = role_named(*split, "gemm");
    ASSERT_EQ(role.agents.size(), 2u);
    EXPECT_EQ(count_ops(role.agents[0].body, OpCode::kWait), 1);
    EXPECT_EQ(count_ops(role.agents[1].body, OpCode::kWait), 0);
    EXPECT_TRUE(role.agents[0].values.empty());
  }
}

TEST_F(SplitAgents, NoScheduleFindsARace) {
  auto program = scheduled(ag_gemm(2, 2));
  Quotas quotas = count_quotas(*program, {});
  for (std::uint64_t i = 0; i < 40; ++i) {
    ControlledOptions options{.launches = 3, .seed = seed_ + i, .compute = false};
    options.policy = static_cast<SchedulePolicy>(i % 4);
    ControlledResult result = run_controlled(program, quotas, options);
    EXPECT_TRUE(result.ok()) << result.report;
  }
}

TEST_F(SplitAgents, AttentionComputesTheSameBits) {
  auto whole = scheduled(attention(0, true)), split = scheduled(attention(2, true));
  ASSERT_EQ(split->roles[0].agents.size(), 2u);
  EXPECT_EQ(split->roles[0].pipes.size(), 3u);
  std::map<std::string, Doubles> inputs = {
      {"q", numbers(56)}, {"k", numbers(176)}, {"v", numbers(176)}};
  for (std::int64_t m : {7, 4, 1, 0}) {
    for (std::int64_t past : {15, 6, 0}) {
      EXPECT_TRUE(same_bits(run(split, inputs, {m, past}), run(whole, inputs, {m, past})))
          << m << " " << past;
    }
  }
}

// What the second product multiplies is made while the one before is under way, in registers of its
// own, so that iterations come in pairs; one may be left.
TEST_F(SplitAgents, AttentionMakesAFactorBesideTheProductBefore) {
  auto whole = scheduled(attention(0, false, DType::kBF16)),
       split = scheduled(attention(2, false, DType::kBF16));
  std::set<int> factors;
  int made_beside = 0;
  std::function<void(const Block&)> look = [&](const Block& block) {
    bool beside = false;
    for (const Op& op : block) {
      if (op.code == OpCode::kAwait) beside = op.exprs[0].is_const(1);
      if (op.code == OpCode::kDotAsync && op.stage == 1) factors.insert(op.operands[1]);
      made_beside += op.code == OpCode::kCast && beside ? 1 : 0;
      for (const Block& body : op.bodies) look(body);
    }
  };
  look(split->roles[0].agents[1].body);
  EXPECT_EQ(factors.size(), 2u) << print(*split);
  EXPECT_EQ(made_beside, 2) << print(*split);
  std::map<std::string, Doubles> inputs = {
      {"q", numbers(56)}, {"k", numbers(176)}, {"v", numbers(176)}};
  for (std::int64_t m : {7, 4, 1, 0}) {  // of one to five iterations
    for (std::int64_t past : {15, 11, 6, 0}) {
      EXPECT_TRUE(same_bits(run(split, inputs, {m, past}), run(whole, inputs, {m, past})))
          << m << " " << past;
    }
  }
}

// The first product of an iteration runs beside the second one of the iteration before.
TEST_F(SplitAgents, AttentionOverlapsItsProductsAndComputesTheSameBits) {
  auto whole = scheduled(attention(0, false)), split = scheduled(attention(2, false));
  Program one_query = attention(2, false);
  one_query.roles[0].resource.tile_slots = 1;  // of what is loaded once a tile
  auto tight = scheduled(std::move(one_query));
  EXPECT_EQ(split->roles[0].pipes[0].num_slots, 2);
  EXPECT_EQ(tight->roles[0].pipes[0].num_slots, 1);
  EXPECT_EQ(tight->roles[0].pipes[1].num_slots, 2);
  bool overlaps = false;
  for (const Op& op : split->roles[0].agents[1].body) {
    if (op.code != OpCode::kWhen) continue;
    for (const Op& inner : op.bodies[0]) {
      if (inner.code != OpCode::kLoop) continue;
      for (const Op& step : inner.bodies[0]) {
        overlaps |= step.code == OpCode::kAwait && step.exprs[0].is_const(1);
      }
    }
  }
  EXPECT_TRUE(overlaps);
  std::map<std::string, Doubles> inputs = {
      {"q", numbers(56)}, {"k", numbers(176)}, {"v", numbers(176)}};
  for (std::int64_t m : {7, 4, 1, 0}) {
    for (std::int64_t past : {15, 6, 0}) {
      auto want = run(whole, inputs, {m, past});
      EXPECT_TRUE(same_bits(run(split, inputs, {m, past}), want)) << m << " " << past;
      EXPECT_TRUE(same_bits(run(tight, inputs, {m, past}), want)) << m << " " << past;
    }
  }
}

TEST_F(SplitAgents, AWaitStaysWhereTheConsumerReadsOnItsOwn) {
  auto whole = scheduled(residual(0)), split = scheduled(residual(3));
  const Role& role = role_named(*split, "gemm");
  ASSERT_EQ(role.agents.size(), 2u);
  EXPECT_EQ(count_ops(role.agents[0].body, OpCode::kWait), 1);
  EXPECT_EQ(count_ops(role.agents[1].body, OpCode::kWait), 1);
  std::map<std::string, Doubles> inputs = {{"in", numbers(128)}, {"b", numbers(64)}};
  for (std::int64_t steps : {2, 1, 0}) {
    EXPECT_EQ(run(split, inputs, {steps}), run(whole, inputs, {steps}));
  }
}

// What a role makes and multiplies by itself is ordered by the signal by which it hands it on.
TEST_F(SplitAgents, RowsThatTheRoleHandsOnAreLoadedAhead) {
  auto whole = scheduled(handed_on(0)), split = scheduled(handed_on(2));
  const Role& role = split->roles[0];
  ASSERT_EQ(role.agents.size(), 2u) << SplitSurvey(*whole, whole->roles[0]).obstacle();
  EXPECT_EQ(count_ops(role.agents[0].body, OpCode::kWait), 1) << "the last orders no load";
  std::map<std::string, Doubles> inputs = {{"x", numbers(128)}, {"b", numbers(128)}};
  EXPECT_EQ(run(split, inputs), run(whole, inputs));
}

// What goes to other ranks the own producer may run ahead of.
TEST_F(SplitAgents, RowsAreLoadedAheadWhereOthersArePushed) {
  for (int world : {2, 3}) {
    auto whole = scheduled(pushed(world, 0)), split = scheduled(pushed(world, 2));
    ASSERT_EQ(split->roles[0].agents.size(), 2u) << SplitSurvey(*whole, whole->roles[0]).obstacle();
    std::map<std::string, Doubles> inputs = {{"a", numbers(128 * world)}, {"b", numbers(128)}};
    EXPECT_EQ(run(split, inputs), run(whole, inputs));
  }
}

// Else the producer would pick rows by what the consumer has yet to store.
TEST_F(SplitAgents, RowsArePickedAheadByWhatTheRoleHandsOn) {
  auto whole = scheduled(picks_handed_on(0, true)), split = scheduled(picks_handed_on(2, true));
  ASSERT_EQ(split->roles[0].agents.size(), 2u) << SplitSurvey(*whole, whole->roles[0]).obstacle();
  std::map<std::string, Doubles> inputs = {
      {"x", numbers(128)}, {"order", {3, 1, 7, 7, 0, 2, 5, 4}}, {"b", numbers(128)}};
  EXPECT_EQ(run(split, inputs), run(whole, inputs));
  auto unordered = scheduled(picks_handed_on(0, false));
  EXPECT_EQ(SplitSurvey(*unordered, unordered->roles[0]).obstacle(),
            "it reads 'which' and writes it too");
}

TEST_F(SplitAgents, RowsAreLoadedAheadWithoutAProduct) {
  auto whole = scheduled(summed_rows(0)), split = scheduled(summed_rows(3));
  const Role& role = split->roles[0];
  ASSERT_EQ(role.agents.size(), 2u) << SplitSurvey(*whole, whole->roles[0]).obstacle();
  ASSERT_EQ(role.pipes.size(), 1u) << "picked rows and the one that is added take turns";
  EXPECT_EQ(role.pipes[0].num_slots, 3);
  EXPECT_EQ(count_ops(role.agents[0].body, OpCode::kPipePut), 4);
  EXPECT_EQ(count_ops(role.agents[1].body, OpCode::kLoad), 3) << "the shares";
  Doubles which = {0, 4, 299, -1, -1, -1, 7, -1, 2, -1, 5, -1, 1, 1, 3, -1, -1, 6};
  std::map<std::string, Doubles> inputs = {
      {"y", numbers(4800)}, {"which", which}, {"share", numbers(18)}, {"old", numbers(96)}};
  Doubles want = inputs["old"];
  for (std::size_t i = 0; i < want.size(); ++i) {
    for (std::size_t j = 0; j < 3; ++j) {
      double row = which[i / 16 * 3 + j];
      if (row < 0) continue;
      auto at = static_cast<std::size_t>(row) * 16 + i % 16;
      want[i] += inputs["y"][at] * inputs["share"][i / 16 * 3 + j];
    }
  }
  EXPECT_EQ(run(whole, inputs)[0], want);
  EXPECT_EQ(run(split, inputs)[0], want) << print(*split);
}

TEST_F(SplitAgents, WhatCannotKeepItsOrderIsRefused) {
  const std::pair<Program, const char*> kCases[] = {
      {own_writes(true), "reads 'x' and writes it"},
      {own_writes(false), "reads 'x' and writes it"},
      {table_loop(true), "a table that launches change"},
      {packets(false), "the packets read at"},
      {no_dot(), "no loop loads rows"}};
  for (const auto& [program, reason] : kCases) {
    expect_user_error([&] { run_pipeline(program); },
                      {program.name, program.roles.back().name, "num_stages = 2", reason});
  }
  EXPECT_EQ(run_pipeline(packets(true)).roles.back().agents.size(), 2u);
}

TEST_F(SplitAgents, ATableMayChooseWhatIsLoaded) {
  auto whole = scheduled(grouped(0)), split = scheduled(grouped(2));
  ASSERT_EQ(split->roles[0].agents.size(), 2u);
  EXPECT_EQ(count_ops(split->roles[0].agents[1].body, OpCode::kLet), 0) << print(*split);
  std::map<std::string, Doubles> inputs = {
      {"group", {1, 0, 1}}, {"a", numbers(96)}, {"b", numbers(64)}};
  EXPECT_EQ(run(split, inputs), run(whole, inputs));
}

TEST_F(SplitAgents, ATableMayDecideHowOftenIsLoaded) {
  auto split = scheduled(table_loop(false));
  ASSERT_EQ(split->roles[0].agents.size(), 2u);
  Doubles a = numbers(64);
  for (std::size_t n : {0, 1, 2}) {
    Doubles c = run(split, {{"steps", {static_cast<double>(n)}}, {"a", a}})[0];
    for (std::size_t i = 0; i < 16; ++i) {
      double sum = 0;
      for (std::size_t l = 0; l < 8 * n; ++l) sum += a[i / 4 * 16 + l] * a[i % 4 * 16 + l];
      EXPECT_EQ(c[i], sum) << n;
    }
  }
}

TEST_F(SplitAgents, IsDoneOnceAndOnlyWhereAsked) {
  Program once = run_pipeline(gemm({.num_stages = 2}));
  EXPECT_EQ(print(split_agents(once)), print(once));
  Program untouched = run_pipeline(gemm({}));
  EXPECT_EQ(print(split_agents(untouched)), print(untouched));
}

}  // namespace
}  // namespace stretto::split_agents_test
