// Roles that are alone with their tiles: few pieces stand for all sizes, and what is wrong in a
// tile or in the order of tiles is found, as when every size is looked at by itself.
#include "stretto/proof/local_roles.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <optional>

#include "stretto/lang/program_builder.h"
#include "stretto/passes/pipeline.h"
#include "stretto/proof/prove.h"

namespace stretto {
namespace {

constexpr std::int64_t kTile = 16, kCols = 4, kGroup = 4, kBound = 200;

// c = a * b^T in tiles, four rows of them at a time. With `rows_too_few` the last tiles are left
// out where they are not whole.
Program product(bool rows_too_few = false, int consumers = 1) {
  ProgramBuilder p("product", 2);
  Index m = p.extent("m", kBound);
  auto a = p.input("a", DType::kBF16, {m, 4 * kTile});
  auto b = p.input("b", DType::kBF16, {kCols * kTile, 4 * kTile});
  auto c = p.output("c", DType::kF32, {m, kCols * kTile});
  Resource sms = Resource::sms(3).pipelined(3).in_turn(consumers);
  p.role("gemm", sms, p.grid(c, kTile, kTile).raster(kGroup), [&](const Tile& t) {
    Value acc = p.zeros(DType::kF32, kTile, kTile);
    p.loop(4, [&](const Index& i) {
      Value rows = p.load(a.tile({t.row, i * kTile}, kTile, kTile));
      Value cols = p.load(b.tile({t.col, i * kTile}, kTile, kTile));
      acc = dot(acc, rows, cols.T());
    });
    p.store(c.tile({t.row, t.col}, kTile, kTile), acc);
  });
  Program out = run_pipeline(p.finish());
  if (rows_too_few) out.roles[0].num_tiles = Expr::var(1) / Expr(kTile) * Expr(kCols);
  return out;
}

ProofResult one_by_one(const Program& program) {
  ProofOptions options;
  options.partition = false;
  options.max_enumerated = std::size_t{1} << 40;
  return prove(program, options);
}

// Every block of every agent, the inner ones first.
void visit(Program& program, const std::function<void(Block&)>& change) {
  std::function<void(Block&)> in = [&](Block& block) {
    for (Op& op : block) {
      for (Block& body : op.bodies) in(body);
    }
    change(block);
  };
  for (Agent& agent : program.roles[0].agents) in(agent.body);
}

bool drop_first(Block& block, OpCode code) {
  auto it = std::ranges::find_if(block, [&](const Op& op) { return op.code == code; });
  if (it == block.end()) return false;
  block.erase(it);
  return true;
}

TEST(LocalRoles, FewPiecesStandForAllSizes) {
  for (int consumers : {1, 2}) {
    ProofResult result = prove(product(false, consumers));
    EXPECT_TRUE(result.proved()) << result.report;
    EXPECT_TRUE(one_by_one(product(false, consumers)).proved());
    if (consumers == 1) {
      EXPECT_LT(result.stats.cases, 6) << result.report;
    }
  }
}

TEST(LocalRoles, TilesOfAnyOrderAreTakenRowByRow) {
  Program program = product();
  LocalRoles roles(program);
  const LocalRoles::Local& gemm = roles.of(program.roles[0]);
  ASSERT_TRUE(gemm.is_local);
  EXPECT_TRUE(gemm.counts_open);
  ASSERT_FALSE(gemm.order.values.empty());
  // At each size, the tiles of both orders are the same.
  for (std::int64_t rows = 1; rows <= 13; ++rows) {
    std::vector<std::int64_t> written;
    for (std::int64_t t = 0; t < rows * kCols; ++t) {
      std::int64_t first = t / (kGroup * kCols) * kGroup, height = std::min(rows - first, kGroup);
      std::int64_t in_group = t % (kGroup * kCols);
      written.push_back((first + in_group % height) * kCols + in_group / height);
    }
    std::ranges::sort(written);
    for (std::int64_t t = 0; t < rows * kCols; ++t) {
      ASSERT_EQ(written[static_cast<std::size_t>(t)], t);
    }
  }
}

struct Slip {
  const char* what;
  std::function<void(Program&)> make;
};

TEST(LocalRoles, WhatIsWrongInATileIsFound) {
  const Slip slips[] = {
      {"the last slot is not freed",
       [](Program& p) {
         bool done = false;
         visit(p, [&](Block& block) { done = done || drop_first(block, OpCode::kPipeRelease); });
       }},
      {"a slot is not filled",
       [](Program& p) { visit(p, [](Block& block) { drop_first(block, OpCode::kPipePut); }); }},
      {"a slot is freed that a product still reads",
       [](Program& p) {
         visit(p, [](Block& block) {
           std::erase_if(block, [](const Op& op) { return op.code == OpCode::kAwait; });
         });
       }},
      {"one block is put less",
       [](Program& p) {
         Block& body = p.roles[0].agents[0].body;
         for (Op& op : body) {
           if (op.code == OpCode::kLoop) op.exprs[1] = Expr(3);
         }
       }},
      {"rows of tiles are taken in smaller groups than they are counted in",
       [](Program& p) {
         visit(p, [](Block& block) {
           for (Op& op : block) {
             if (op.code != OpCode::kLet) continue;
             const ExprNode& n = op.exprs[0].node();
             if (n.op != ExprOp::kFloorDiv || n.args[1].node().op != ExprOp::kMin) continue;
             Expr left = n.args[1].node().args[0];
             Expr fewer = Expr::make(ExprOp::kMin, {left, Expr(kGroup - 1)});
             op.exprs[0] = n.args[0] / fewer;
           }
         });
       }},
      {"a tile is stored where its neighbour is",
       [](Program& p) {
         visit(p, [](Block& block) {
           for (Op& op : block) {
             if (op.code == OpCode::kStore) op.region->origin[1] = op.region->origin[1] + 1;
           }
         });
       }},
  };
  for (const Slip& slip : slips) {
    SCOPED_TRACE(slip.what);
    Program wrong = product();
    slip.make(wrong);
    EXPECT_TRUE(prove(wrong).rejected()) << prove(wrong).report;
    EXPECT_TRUE(one_by_one(wrong).rejected());
  }
  EXPECT_TRUE(prove(product(true)).rejected());
}

// Somebody else hears of what such a role does: it is walked.
TEST(LocalRoles, OthersAreNotTakenForOne) {
  for (const auto& change : std::vector<std::function<void(Program&)>>{
           [](Program& p) { p.tensors[0].space = Space::kSymmetric; },
           [](Program& p) { p.tensors[2].kind = TensorKind::kBuffer; },
           [](Program& p) { p.tensors[2].kind = TensorKind::kState; }}) {
    Program program = product();
    change(program);
    EXPECT_FALSE(LocalRoles(program).of(program.roles[0]).is_local);
  }
}

}  // namespace
}  // namespace stretto
