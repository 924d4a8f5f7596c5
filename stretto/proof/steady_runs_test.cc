// Runs of slots that every tile passes alike, in roles that wait for others: few events stand for
// them, and what is wrong in one is found, as when every size is looked at by itself.
#include "stretto/proof/steady_runs.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>

#include "stretto/lang/program_builder.h"
#include "stretto/passes/pipeline.h"
#include "stretto/proof/one_by_one_testing.h"
#include "stretto/proof/prove.h"

namespace stretto::steady_runs_test {
namespace {

constexpr std::int64_t kTile = 16, kSteps = 6, kBound = 150;
constexpr int kWorld = 2;

// Every rank pushes its rows to all, block by block; tiles that have rows wait for a rank's block
// before they multiply it, one rank after the other.
Program gathered_products(int consumers) {
  ProgramBuilder p("gathered_products", kWorld);
  Index m = p.extent("m", kBound);
  constexpr std::int64_t kBlocks = (kBound + kTile - 1) / kTile, kCols = kSteps * kTile;
  auto in = p.input("in", DType::kBF16, {m, kCols});
  auto b = p.input("b", DType::kBF16, {kTile, kCols});
  auto full = p.buffer("full", DType::kBF16, {kWorld, kBlocks * kTile, kCols},
                       {.space = Space::kSymmetric});
  auto out = p.output("out", DType::kF32, {m, kTile});
  auto ready = p.signal("ready"), sent = p.signal("sent", kWorld * kBlocks);
  p.on_start([&] { p.notify_all(ready); });
  p.role("push", Resource::copy_engine(), p.range(kWorld * kBlocks), [&](const Tile& t) {
    Index peer = p.let("peer", (p.rank() + t.index / kBlocks) % kWorld);
    Index row = p.let("row", t.index % kBlocks * kTile);
    p.wait(ready, peer);
    p.copy(full.on(peer).tile({p.rank(), row, 0}, kTile, kCols), in.tile({row, 0}, kTile, kCols));
    p.notify(sent[p.rank() * kBlocks + t.index % kBlocks], peer);
  });
  Resource workers = Resource::sms(2).pipelined(3).ping_pong(consumers);
  p.role("multiply", workers, p.range(kBlocks), [&](const Tile& t) {
    Index row = t.index * kTile;
    p.when(row < m, [&] {
      Value acc = p.zeros(DType::kF32, kTile, kTile);
      p.loop(kWorld, [&](const Index& source) {
        p.wait(sent[source * kBlocks + t.index], 1);
        p.loop(kSteps, [&](const Index& i) {
          Value rows = p.load(full.tile({source, row, i * kTile}, kTile, kTile).until_row(m));
          acc = dot(acc, rows, p.load(b.tile({0, i * kTile}, kTile, kTile)).T());
        });
      });
      p.store(out.tile({row, 0}, kTile, kTile), acc);
    });
  });
  return run_pipeline(p.finish());
}

// Every block of the agents of the role that multiplies, from `first` on, the inner ones first.
void visit(Program& program, std::size_t first, const std::function<void(Block&)>& change) {
  std::function<void(Block&)> in = [&](Block& block) {
    for (Op& op : block) {
      for (Block& body : op.bodies) in(body);
    }
    change(block);
  };
  std::vector<Agent>& agents = program.roles[1].agents;
  for (std::size_t a = first; a < agents.size(); ++a) in(agents[a].body);
}

// Of one block, the inner ones first.
void drop_one(Program& program, std::size_t first_agent, OpCode code) {
  bool done = false;
  visit(program, first_agent, [&](Block& block) {
    auto it = std::ranges::find_if(block, [&](const Op& op) { return op.code == code; });
    if (done || it == block.end()) return;
    block.erase(it);
    done = true;
  });
}

TEST(SteadyRuns, FewEventsStandForAllSlots) {
  for (int consumers : {1, 2}) {
    ProofResult result = prove(gathered_products(consumers));
    EXPECT_EQ(result.verdict, Verdict::kProved) << result.report;
    ProofResult walked = one_by_one(gathered_products(consumers));
    EXPECT_TRUE(walked.proved()) << walked.report;
    EXPECT_LT(result.stats.cases, 6) << result.report;
    EXPECT_LT(2 * result.stats.events, walked.stats.events);
  }
}

TEST(SteadyRuns, WhatIsWrongInOneIsFound) {
  struct Slip {
    const char* what;
    std::function<void(Program&)> make;
  };
  const Slip slips[] = {
      {"a slot is not freed", [](Program& p) { drop_one(p, 1, OpCode::kPipeRelease); }},
      {"a slot is not filled", [](Program& p) { drop_one(p, 0, OpCode::kPipePut); }},
      {"a slot is freed that a product still reads",
       [](Program& p) {
         visit(p, 1, [](Block& block) {
           std::erase_if(block, [](const Op& op) { return op.code == OpCode::kAwait; });
         });
       }},
      {"a step is put less",
       [](Program& p) {
         visit(p, 0, [](Block& block) {
           for (Op& op : block) {
             bool puts = op.code == OpCode::kLoop && op.bodies[0][0].code == OpCode::kPipePut;
             if (puts) op.exprs[1] = Expr(kSteps - 1);
           }
         });
       }},
      {"nobody waits for what is loaded",
       [](Program& p) {
         visit(p, 0, [](Block& block) {
           std::erase_if(block, [](const Op& op) { return op.code == OpCode::kWait; });
         });
       }},
      {"what is loaded is waited for behind it",
       [](Program& p) {
         visit(p, 0, [](Block& block) {
           auto it =
               std::ranges::find_if(block, [](const Op& op) { return op.code == OpCode::kWait; });
           if (it != block.end()) std::rotate(it, it + 1, block.end());
         });
       }},
      {"the last consumer has a tile less than is put",
       [](Program& p) {
         bool done = false;
         visit(p, p.roles[1].agents.size() - 1, [&](Block& block) {
           for (Op& op : block) {
             bool by_size = op.code == OpCode::kWhen && op.exprs[0].node().op == ExprOp::kLt &&
                            op.exprs[0].node().args[1].node().op == ExprOp::kVar;
             if (!by_size || done) continue;
             const ExprNode& n = op.exprs[0].node();
             op.exprs[0] = n.args[0] < n.args[1] - 1;
             done = true;
           }
         });
       }},
  };
  for (const Slip& slip : slips) {
    for (int consumers : {1, 2}) {
      SCOPED_TRACE(fmt::format("{}, consumers {}", slip.what, consumers));
      Program wrong = gathered_products(consumers);
      slip.make(wrong);
      EXPECT_TRUE(one_by_one(wrong).rejected()) << one_by_one(wrong).report;
      EXPECT_TRUE(prove(wrong).rejected()) << prove(wrong).report;
    }
  }
}

}  // namespace
}  // namespace stretto::steady_runs_test
