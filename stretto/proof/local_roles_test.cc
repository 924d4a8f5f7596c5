// Roles that are alone with their tiles: few pieces stand for all sizes, and what is wrong in a
// tile or in the order of tiles is found, as when every size is looked at by itself.
#include "stretto/proof/local_roles.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <optional>

#include "stretto/lang/program_builder.h"
#include "stretto/passes/pipeline.h"
#include "stretto/proof/one_by_one_testing.h"
#include "stretto/proof/prove.h"

namespace stretto::local_roles_test {
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
  Resource sms = Resource::sms(3).pipelined(3).ping_pong(consumers);
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
    EXPECT_LT(result.stats.cases, 6) << result.report;
  }
}

TEST(LocalRoles, TilesOfAnyOrderAreTakenRowByRow) {
  for (int consumers : {1, 2, 3}) {
    Program program = product(false, consumers);
    const LocalRoles::Local& gemm = LocalRoles(program).of(program.roles[0]);
    EXPECT_TRUE(gemm.is_local);
    EXPECT_TRUE(gemm.counts_open);
    EXPECT_EQ(gemm.turns.size(), static_cast<std::size_t>(consumers));
    EXPECT_FALSE(gemm.order.values.empty());
  }
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
         visit(p, [](Block& block) {
           for (Op& op : block) {
             bool puts = op.code == OpCode::kLoop && op.bodies[0][0].code == OpCode::kPipePut;
             if (puts) op.exprs[1] = Expr(3);
           }
         });
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
    for (int consumers : {1, 2}) {
      SCOPED_TRACE(fmt::format("{}, consumers {}", slip.what, consumers));
      Program wrong = product(false, consumers);
      slip.make(wrong);
      EXPECT_TRUE(prove(wrong).rejected()) << prove(wrong).report;
      EXPECT_TRUE(one_by_one(wrong).rejected());
    }
  }
  EXPECT_TRUE(prove(product(true)).rejected());
}

// Of consumers in turn all have to do the same, each with its own tiles, for any order of tiles to
// do.
TEST(LocalRoles, WhatIsWrongInOneConsumersTurnIsFound) {
  auto second = [](Program& p) -> Block& { return p.roles[0].agents[2].body[0].bodies[0]; };
  auto is_quotient = [](const Op& op) {
    const ExprNode& n = op.exprs[0].node();
    return n.op == ExprOp::kFloorDiv && n.args[1].node().op == ExprOp::kMin;
  };
  const Slip slips[] = {
      {"it stores beside its place",
       [&](Program& p) {
         for (Op& op : second(p)) {
           if (op.code == OpCode::kStore) op.region->origin[1] = op.region->origin[1] + kTile;
         }
       }},
      {"it takes another order",
       [&](Program& p) {
         for (Op& op : second(p)) {
           if (op.code == OpCode::kLet && is_quotient(op)) op.exprs[0] = kCols - 1 - op.exprs[0];
         }
       }},
      {"it takes the tiles of the first",
       [](Program& p) {
         Block first = p.roles[0].agents[1].body[0].bodies[0];
         Block& block = p.roles[0].agents[2].body[0].bodies[0];
         for (std::size_t i = 0; i < block.size(); ++i) {
           if (block[i].code == OpCode::kLet) block[i].exprs = first[i].exprs;
         }
       }},
      {"it stops a tile early",
       [](Program& p) {
         Op& turn = p.roles[0].agents[2].body[0];
         const ExprNode& n = turn.exprs[0].node();
         turn.exprs[0] = n.args[0] < n.args[1] - 1;
       }},
      {"the last round is left out",
       [](Program& p) {
         Role& role = p.roles[0];
         Expr tiles = role.agents[1].body[0].exprs[0].node().args[1];
         std::int64_t workers = role.resource.num_workers;
         role.num_tiles = tiles / (2 * workers) * workers;
       }},
      {"it frees a slot too few",
       [&](Program& p) {
         Program all = p;
         visit(all, [](Block& block) { drop_first(block, OpCode::kPipeRelease); });
         second(p) = second(all);
       }},
  };
  EXPECT_TRUE(one_by_one(product(false, 2)).proved());
  for (const Slip& slip : slips) {
    SCOPED_TRACE(slip.what);
    Program wrong = product(false, 2);
    slip.make(wrong);
    EXPECT_TRUE(prove(wrong).rejected()) << prove(wrong).report;
    EXPECT_TRUE(one_by_one(wrong).rejected());
  }
}

constexpr std::int64_t kHeads = 4, kKeys = 8;

// Rows of queries see as many keys as there are rows up to their last, the last rows first, so many
// heads at a time, as attention does on GPUs.
Program queries(std::int64_t group, std::int64_t bound = kBound) {
  ProgramBuilder p("queries", 1);
  Index m = p.extent("m", bound), rows = ceil_div(m, Index(kTile));
  auto q = p.input("q", DType::kBF16, {m, kHeads * kTile});
  auto keys = p.state("keys", DType::kBF16, {kHeads, bound, kTile});
  auto out = p.output("out", DType::kF32, {m, kHeads * kKeys});
  p.role("attend", Resource::sms(3).pipelined(2), p.grid(rows * kHeads, 1, 1, 1),
         [&](const Tile& t) {
           Index in_group = p.let("in_group", t.m % (rows * group));
           Index head = p.let("head", t.m / (rows * group) * group + in_group % group);
           Index first = p.let("first", (rows - 1 - in_group / group) * kTile);
           Index end = p.let("end", min(first + kTile, m));
           Value acc = p.zeros(DType::kF32, kTile, kKeys);
           p.loop(0, ceil_div(end, kKeys), [&](const Index& j) {
             Value of_rows = p.load(q.tile({first, head * kTile}, kTile, kTile));
             Value key = p.load(keys.tile({head, j * kKeys, 0}, kKeys, kTile).until_row(end));
             acc = acc + dot(p.zeros(DType::kF32, kTile, kKeys), of_rows, key.T());
           });
           p.store(out.tile({first, head * kKeys}, kTile, kKeys), acc);
         });
  return run_pipeline(p.finish());
}

TEST(LocalRoles, LoopsThatSizesEndAreOfATileToo) {
  for (std::int64_t group : {std::int64_t{1}, std::int64_t{2}, kHeads}) {
    SCOPED_TRACE(fmt::format("group {}", group));
    ProofResult result = prove(queries(group, 20'000));
    EXPECT_EQ(result.verdict, Verdict::kProved) << result.report;
    EXPECT_LT(result.stats.cases, 6) << result.report;
    EXPECT_TRUE(one_by_one(queries(group)).proved());
  }
}

// Tiles that are taken in another order, or not all, and loops that do not go together.
TEST(LocalRoles, WhatIsWrongInTilesOfSuchLoopsIsFound) {
  auto lets = [](Program& p, std::size_t agent, const char* name,
                 const std::function<Expr(const Expr&)>& change) {
    for (Op& op : p.roles[0].agents[agent].body) {
      bool is_it = op.code == OpCode::kLet &&
                   p.vars[static_cast<std::size_t>(op.var)].name.starts_with(name);
      if (is_it) op.exprs[0] = change(op.exprs[0]);
    }
  };
  const Slip slips[] = {
      {"one agent takes other rows",
       [&](Program& p) { lets(p, 1, "first", [](const Expr& e) { return e + kTile; }); }},
      {"one agent takes another group of heads",
       [&](Program& p) {
         Program other = queries(kHeads);
         for (std::size_t i = 0; i < 3; ++i) {
           p.roles[0].agents[1].body[i].exprs = other.roles[0].agents[1].body[i].exprs;
         }
       }},
      {"both take a group that heads are no multiple of",
       [&](Program& p) {
         Program other = queries(3);
         for (std::size_t a = 0; a < 2; ++a) {
           for (std::size_t i = 0; i < 3; ++i) {
             p.roles[0].agents[a].body[i].exprs = other.roles[0].agents[a].body[i].exprs;
           }
         }
       }},
      {"the last tile is left out",
       [&](Program& p) { p.roles[0].num_tiles = p.roles[0].num_tiles - 1; }},
      {"one agent sees a key less",
       [&](Program& p) { lets(p, 1, "end", [](const Expr& e) { return e - 1; }); }},
      {"another head is stored",
       [&](Program& p) {
         visit(p, [](Block& block) {
           for (Op& op : block) {
             if (op.code == OpCode::kStore) op.region->origin[1] = op.region->origin[1] + 1;
           }
         });
       }},
  };
  for (const Slip& slip : slips) {
    SCOPED_TRACE(slip.what);
    Program wrong = queries(2);
    slip.make(wrong);
    EXPECT_TRUE(one_by_one(wrong).rejected()) << one_by_one(wrong).report;
    EXPECT_TRUE(prove(wrong).rejected()) << prove(wrong).report;
  }
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
}  // namespace stretto::local_roles_test
