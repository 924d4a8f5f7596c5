// What is left of the passing of slots, and that it is enough: what an agent learns from outside
// reaches the agents of its worker, and what they did is over for whoever they tell.
#include "stretto/proof/pipe_slice.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "stretto/lang/program_builder.h"
#include "stretto/passes/pipeline.h"
#include "stretto/proof/check.h"
#include "stretto/proof/expand.h"
#include "stretto/proof/happens_before.h"
#include "stretto/proof/prove.h"
#include "stretto/proof/timeline.h"

namespace stretto::pipe_slice_test {
namespace {

constexpr std::int64_t kStep = 16, kTrips = 64, kTiles = 4;

enum class Exchange { kNone, kToPeer };

// out = a * b^T, `tiles` of 16 rows, each over many slots. With kToPeer `a` is the other rank's,
// who says when it may be read, and is told tile by tile when it has been.
Program product(Exchange exchange) {
  ProgramBuilder p("product", 2);
  bool far = exchange == Exchange::kToPeer;
  auto a = p.input("a", DType::kBF16, {kTiles * 16, kTrips * kStep},
                   far ? Space::kSymmetric : Space::kLocal);
  auto b = p.input("b", DType::kBF16, {16, kTrips * kStep});
  auto out = p.output("out", DType::kF32, {kTiles * 16, 16});
  SignalRef ready, done;
  if (far) {
    ready = p.signal("ready");
    done = p.signal("done");
    p.on_start([&] { p.notify_all(ready); });
  }
  Index peer = (p.rank() + 1) % 2;
  p.role("multiply", Resource::sms(1).pipelined(3), p.range(kTiles), [&](const Tile& t) {
    if (far) p.wait(ready, peer);
    Value acc = p.zeros(DType::kF32, 16, 16);
    p.loop(kTrips, [&](const Index& i) {
      auto rows = (far ? a.on(peer) : a).tile({t.index * 16, i * kStep}, 16, kStep);
      acc = dot(acc, p.load(rows), p.load(b.tile({0, i * kStep}, 16, kStep)).T());
    });
    p.store(out.tile({t.index * 16, 0}, 16, 16), acc);
    if (far) p.notify(done[p.rank()], peer);
  });
  if (far) p.on_end([&] { p.wait(done[peer], kTiles); });
  return run_pipeline(p.finish());
}

std::size_t num_syncs(const InstanceGraph& graph) {
  std::size_t n = 0;
  for (const AgentTrace& a : graph.agents) n += a.syncs.size();
  return n;
}

bool finds_nothing(const InstanceGraph& graph) {
  Timeline timeline;
  for (int e = 0; e < 4; ++e) timeline.launches.push_back(&graph);
  Execution execution = execute(timeline);
  EXPECT_TRUE(execution.finished) << execution.stuck;
  if (!execution.finished) return false;
  HappensBefore order(timeline, execution);
  AccessChecker checker(4, sync_table(), 64);
  checker.use(order);
  return checker.check_launch(timeline).empty() && checker.check_reuse(timeline, 1).empty();
}

TEST(PipeSlice, NothingStaysWhereNobodyOutsideIsInvolved) {
  Program program = product(Exchange::kNone);
  InstanceGraph graph = expand(program, {});
  EXPECT_GT(num_syncs(graph), std::size_t{2 * kTiles * kTrips});
  InstanceGraph slice = without_idle_slots(graph);
  EXPECT_EQ(num_syncs(slice), 0u);
  EXPECT_TRUE(finds_nothing(slice));
  EXPECT_LT(prove(program).stats.clocks, 100u);
}

TEST(PipeSlice, WhatIsLearntAndToldStays) {
  Program program = product(Exchange::kToPeer);
  InstanceGraph graph = expand(program, {});
  InstanceGraph slice = without_idle_slots(graph);
  // Of each tile a few edges along two pipes, however many slots it passes.
  EXPECT_LT(num_syncs(slice), std::size_t{2 * kTiles * 24});
  EXPECT_TRUE(finds_nothing(slice));
  int own_input = program.find_tensor("b");
  for (std::size_t a = 0; a < graph.agents.size(); ++a) {
    std::vector<std::string> expected, got;
    for (const Access& x : graph.agents[a].accesses) {
      if (x.tensor != own_input) expected.push_back(describe_access(graph, x));
    }
    for (const Access& x : slice.agents[a].accesses) got.push_back(describe_access(slice, x));
    EXPECT_EQ(got, expected);
  }
}

// The edges that stay are needed: without those from the agent that loads to the one that tells the
// peer so, or without the notify, reads are not over when the peer's launch ends.
TEST(PipeSlice, AMissingNotifyIsFoundInTheSlice) {
  Program program = product(Exchange::kToPeer);
  for (Agent& agent : program.roles[0].agents) {
    std::erase_if(agent.body, [](const Op& op) { return op.code == OpCode::kWait; });
  }
  EXPECT_FALSE(finds_nothing(without_idle_slots(expand(program, {}))));
  ProofResult result = prove(program);
  EXPECT_TRUE(result.rejected());
  EXPECT_NE(result.report.find("may come before launch"), std::string::npos) << result.report;
}

// A landing names where the slot is got, in the positions of the slice.
TEST(PipeSlice, LandingsMoveWithTheirAgents) {
  Program program = product(Exchange::kToPeer);
  InstanceGraph slice = without_idle_slots(expand(program, {}));
  int landed = 0;
  for (std::size_t a = 0; a < slice.agents.size(); ++a) {
    int last = 0;  // of the agent's loads, in their order
    for (const Access& access : slice.agents[a].accesses) {
      if (access.landed.agent < 0) continue;
      ++landed;
      ASSERT_NE(access.landed.agent, static_cast<int>(a));
      const AgentTrace& consumer = slice.agents[static_cast<std::size_t>(access.landed.agent)];
      EXPECT_LE(access.landed.pos, static_cast<int>(consumer.syncs.size()));
      EXPECT_GE(access.landed.pos, last);
      last = access.landed.pos;
    }
  }
  EXPECT_GE(landed, 2 * kTiles);  // of both ranks
}

}  // namespace
}  // namespace stretto::pipe_slice_test
