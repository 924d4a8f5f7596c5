// The proof takes split programs as it takes whole ones, and takes none from which an edge between
// agents, ranks or roles was deleted.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "stretto/ir/printer.h"
#include "stretto/passes/pipeline.h"
#include "stretto/passes/split_samples.h"
#include "stretto/proof/prove.h"

namespace stretto::split_agents_proof_test {
namespace {

using split_samples::ag_gemm, split_samples::attention, split_samples::gemm, split_samples::grouped,
    split_samples::picked, split_samples::picked_by_pairs, split_samples::pushed,
    split_samples::residual, split_samples::summed_rows;

TEST(SplitAgentsProof, SplitProgramsAreProved) {
  std::vector<Program> programs = {
      gemm({.num_stages = 2}),
      gemm({.num_stages = 3, .two_products = true}),
      gemm({.num_stages = 2, .keep_copies = true}),
      gemm({.num_stages = 2, .num_consumers = 2}),
      gemm({.num_stages = 2, .two_products = true, .num_consumers = 3}),
      attention(2, true),
      attention(2, false),
      residual(2),
      grouped(2),
      picked(2),
      picked_by_pairs(2),
      pushed(2, 2),
      pushed(3, 2),
      summed_rows(2)};
  for (int world : {1, 2, 3}) programs.push_back(ag_gemm(world, 2));
  for (Program& program : programs) {
    Program schedule = run_pipeline(std::move(program));
    ASSERT_GE(schedule.roles.back().agents.size(), 2u) << print(schedule);
    ProofResult proof = prove(schedule);
    EXPECT_TRUE(proof.proved()) << proof.report;
  }
}

// Which rows are there decides which slots are passed: that both agents go by the same table is
// enough, whatever it says.
TEST(SplitAgentsProof, SlotsOfPickedRowsAreProvedForEveryTable) {
  Program split = run_pipeline(summed_rows(2));
  ProofResult proof = prove(split);
  EXPECT_TRUE(proof.proved()) << proof.report;
  EXPECT_EQ(proof.stats.sampled_because, "");
  auto first_get = [](Block& loop) -> Op& {
    auto gets = [](const Op& op) {
      return op.code == OpCode::kWhen && op.bodies[0][0].code == OpCode::kPipeGet;
    };
    return *std::find_if(loop.begin(), loop.end(), gets);
  };
  Op& get = first_get(split.roles[0].agents[1].body[0].bodies[0]);
  get.exprs[0] = get.exprs[0] || Expr::var(split.roles[0].tile_var) == 1;
  EXPECT_TRUE(prove(split).rejected()) << "a row that is got and was not put";
}

// The split goes by a rank that is told being another; the proof by what it is.
TEST(SplitAgentsProof, WhatIsPushedToTheOwnRankIsARace) {
  Program split = run_pipeline(pushed(2, 2, 0));
  ASSERT_EQ(split.roles[0].agents.size(), 2u);
  EXPECT_TRUE(prove(split).rejected());
}

// Deletes one operation after the other; calls `check` with what is left.
void each_without(const Program& program, const std::function<bool(const Op&)>& matches,
                  const std::function<void(const Program&, const std::string&)>& check) {
  for (int n = 0;; ++n) {
    Program edited = program;
    int seen = 0;
    std::string deleted;
    std::function<void(Block&)> visit = [&](Block& block) {
      for (std::size_t i = 0; i < block.size(); ++i) {
        if (matches(block[i]) && seen++ == n) {
          deleted = print_op(program, nullptr, block[i]);
          block.erase(block.begin() + static_cast<std::ptrdiff_t>(i));
          return;
        }
        for (Block& body : block[i].bodies) visit(body);
      }
    };
    visit(edited.on_start.body);
    for (Role& role : edited.roles) {
      for (Agent& agent : role.agents) visit(agent.body);
    }
    visit(edited.on_end.body);
    if (deleted.empty()) return;
    check(edited, deleted);
  }
}

TEST(SplitAgentsProof, WhatIsTakenAwayIsMissed) {
  int num_edits = 0;
  auto is_edge = [](const Op& op) {
    return op.code == OpCode::kPipeRelease || op.code == OpCode::kWait ||
           op.code == OpCode::kAwait || op.code == OpCode::kNotify;
  };
  Program programs[] = {run_pipeline(ag_gemm(2, 2)),      run_pipeline(gemm({.num_stages = 2})),
                        run_pipeline(residual(2)),        run_pipeline(picked(2)),
                        run_pipeline(picked_by_pairs(2)), run_pipeline(summed_rows(2))};
  for (const Program& program : programs) {
    each_without(program, is_edge, [&](const Program& edited, const std::string& deleted) {
      ++num_edits;
      EXPECT_TRUE(prove(edited).rejected()) << program.name << " without " << deleted;
    });
  }
  EXPECT_GE(num_edits, 18);
}

}  // namespace
}  // namespace stretto::split_agents_proof_test
