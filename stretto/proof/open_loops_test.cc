// Loops over slots that sizes end: a few pieces stand for all sizes, and what is wrong in any
// number of iterations is found, as when every size is looked at by itself.
#include "stretto/proof/open_loops.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>

#include "stretto/lang/program_builder.h"
#include "stretto/passes/pipeline.h"
#include "stretto/proof/one_by_one_testing.h"
#include "stretto/proof/prove.h"

namespace stretto::open_loops_test {
namespace {

constexpr std::int64_t kBlock = 16, kBound = 400;

struct Shape {
  bool pushed = false;        // keys lie with another rank, which sends them
  bool waits = true;          // for them
  std::int64_t short_by = 0;  // rows that are not sent
};

// out = sum over blocks of keys of (q * k^T) * v, for four tiles of queries.
Program over_keys(const Shape& o = {}) {
  ProgramBuilder p("over_keys", o.pushed ? 2 : 1);
  Index m = p.extent("m", kBound);
  auto q = p.input("q", DType::kBF16, {64, kBlock});
  auto k = p.input("k", DType::kBF16, {m, kBlock}), v = p.input("v", DType::kBF16, {m, kBlock});
  auto out = p.output("out", DType::kF32, {64, kBlock});
  TensorRef keys = k, values = v;
  SignalRef sent, ready;
  if (o.pushed) {
    BufferOptions symmetric{.space = Space::kSymmetric};
    keys = p.buffer("keys", DType::kBF16, {m, kBlock}, symmetric);
    values = p.buffer("values", DType::kBF16, {m, kBlock}, symmetric);
    sent = p.signal("sent", 1);
    ready = p.signal("ready", 1);
    Index other = 1 - p.rank();
    p.on_start([&] { p.notify(ready[0], other); });
    p.role("send", Resource::copy_engine(1), p.range(1), [&](const Tile&) {
      p.wait(ready[0], 1);
      p.put(keys.tile({0, 0}, kBound, kBlock).until_row(m - o.short_by).on(other),
            k.tile({0, 0}, kBound, kBlock));
      p.put(values.tile({0, 0}, kBound, kBlock).on(other), v.tile({0, 0}, kBound, kBlock));
      p.notify(sent[0], other);
    });
  }
  p.role("attend", Resource::sms(2).pipelined(2), p.range(4), [&](const Tile& t) {
    Value query = p.load(q.tile({t.index * kBlock, 0}, kBlock, kBlock));
    if (o.pushed && o.waits) p.wait(sent[0], 1);
    Value acc = p.zeros(DType::kF32, kBlock, kBlock);
    p.loop(ceil_div(m, kBlock), [&](const Index& i) {
      auto block = [&](const TensorRef& of) {
        return p.load(of.tile({i * kBlock, 0}, kBlock, kBlock).until_row(m));
      };
      Value scores = dot(p.zeros(DType::kF32, kBlock, kBlock), query, block(keys).T());
      acc = dot(acc, cast(scores, DType::kBF16), block(values));
    });
    p.store(out.tile({t.index * kBlock, 0}, kBlock, kBlock), acc);
  });
  return run_pipeline(p.finish());
}

using Edit = std::function<void(Block&)>;

// Applies it to the agent's body, or to that of every operation with this code in it.
void edit(Program& program, bool producer, const Edit& change,
          std::optional<OpCode> within = std::nullopt) {
  std::function<void(Block&)> visit = [&](Block& block) {
    if (!within) return change(block);
    for (Op& op : block) {
      if (op.code == *within) change(op.bodies[0]);
      for (Block& body : op.bodies) visit(body);
    }
  };
  for (Agent& agent : program.roles.back().agents) {
    if ((agent.kind == AgentKind::kProducer) == producer) visit(agent.body);
  }
}

Op* first_of(Block& block, OpCode code) {
  for (Op& op : block) {
    if (op.code == code) return &op;
    for (Block& body : op.bodies) {
      if (Op* found = first_of(body, code)) return found;
    }
  }
  return nullptr;
}

TEST(OpenLoops, FewPiecesStandForAllSizes) {
  for (bool pushed : {false, true}) {
    ProofResult result = prove(over_keys({.pushed = pushed}));
    EXPECT_TRUE(result.proved()) << result.report;
    EXPECT_LT(result.stats.cases, 12) << result.report;
    EXPECT_TRUE(one_by_one(over_keys({.pushed = pushed})).proved());
  }
}

TEST(OpenLoops, WhatTheyReadHasToBeThereAndOver) {
  for (Shape wrong : {Shape{.pushed = true, .waits = false}, {.pushed = true, .short_by = 1}}) {
    ProofResult result = prove(over_keys(wrong));
    EXPECT_TRUE(result.rejected()) << result.report;
    EXPECT_TRUE(one_by_one(over_keys(wrong)).rejected());
  }
}

struct Slip {
  const char* what;
  bool producer;
  Edit change;
  std::optional<OpCode> within;
};

// The extent of keys.
Expr num_keys() {
  const std::vector<Var> vars = over_keys().vars;
  auto extent = std::ranges::find(vars, VarKind::kExtent, &Var::kind);
  return Expr::var(static_cast<int>(extent - vars.begin()));
}

// Each is wrong for some number of iterations, or at some size.
std::vector<Slip> slips() {
  auto drop = [](OpCode code, bool last) {
    return [=](Block& b) {
      auto is = [=](const Op& op) { return op.code == code; };
      auto it = std::find_if(b.begin(), b.end(), is);
      if (last) it = std::find_if(b.rbegin(), b.rend(), is).base() - 1;
      b.erase(it);
    };
  };
  auto shift = [](std::size_t which, std::int64_t by) {
    return [=](Block& b) {
      Op* loop = first_of(b, OpCode::kLoop);
      loop->exprs[which] = loop->exprs[which] + by;
    };
  };
  return {
      {"the producer begins late", true, shift(0, 1), {}},
      {"the producer goes on", true, shift(1, 1), {}},
      {"the consumer ends early", false, shift(1, -1), {}},
      {"the consumer begins late", false, shift(0, 1), {}},
      {"nothing is put of the values", true, drop(OpCode::kPipePut, true), OpCode::kLoop},
      {"a slot is not released", false, drop(OpCode::kPipeRelease, true), OpCode::kLoop},
      {"a slot is got twice", false,
       [](Block& b) { b.insert(b.begin(), *first_of(b, OpCode::kPipeGet)); }, OpCode::kLoop},
      {"slots are released before products are awaited", false,
       [](Block& b) {
         for (Op& op : b) {
           if (op.code == OpCode::kAwait) op.exprs[0] = Expr(9);
         }
       },
       OpCode::kLoop},
      {"products are awaited at the bound alone", false,
       [](Block& b) {
         for (Op& op : b) {
           if (op.code == OpCode::kAwait) op.exprs[0] = Expr(kBound) - num_keys();
         }
       },
       OpCode::kLoop},
      {"two iterations of keys come before their values",
       true,
       [](Block& b) {
         Op* loop = first_of(b, OpCode::kLoop);
         Op values = *loop;
         loop->bodies[0].pop_back();
         values.bodies[0].erase(values.bodies[0].begin());
         b.push_back(values);
       },
       {}},
      {"a condition leaves out one iteration",
       false,
       [](Block& b) {
         Op* when = first_of(b, OpCode::kWhen);
         when->exprs[0] = Expr(1) < when->exprs[0].node().args[1];
       },
       {}},
      {"what comes behind reads a slot",
       false,
       [](Block& b) {
         Op use{.code = OpCode::kCast, .result = 1000, .operands = {}};
         use.operands = {
             first_of(*&first_of(b, OpCode::kLoop)->bodies[0], OpCode::kPipeGet)->result};
         use.loc = b.back().loc;
         b.insert(b.end() - 1, use);
       },
       {}},
  };
}

TEST(OpenLoops, NoSlipGetsThrough) {
  for (const Slip& slip : slips()) {
    Program program = over_keys();
    edit(program, slip.producer, slip.change, slip.within);
    ProofResult result = prove(program);
    EXPECT_FALSE(result.proved()) << slip.what << "\n" << result.report;
    EXPECT_TRUE(one_by_one(program).rejected()) << slip.what;
  }
}

// The consumer waits, before its loop, for what the producer says behind its own: that comes as
// long as all blocks fit in the slots.
TEST(OpenLoops, AWaitMayReachAcrossThem) {
  for (bool before : {false, true}) {
    Program program = over_keys();
    program.signals.push_back({.name = "passed"});
    int passed = static_cast<int>(program.signals.size()) - 1;
    SourceLoc loc = program.roles[0].loc;
    Op notify{.code = OpCode::kNotify, .exprs = {0, 0, 1}, .symbol = passed, .loc = loc};
    Op wait{.code = OpCode::kWait, .exprs = {0, 1}, .symbol = passed, .loc = loc};
    edit(program, true, [&](Block& b) { b.insert(before ? b.begin() : b.end(), notify); });
    edit(program, false, [&](Block& b) { b.insert(b.begin(), wait); });
    EXPECT_EQ(prove(program).proved(), before);
    EXPECT_EQ(one_by_one(program).proved(), before);
  }
}

// A pipe that is passed outside of such a loop, too, is walked, right or wrong.
TEST(OpenLoops, ASlotBehindTheLoopCounts) {
  for (bool got : {true, false}) {
    Program program = over_keys();
    auto more = [](std::initializer_list<OpCode> codes) {
      return [=](Block& b) {
        Block& body = first_of(b, OpCode::kLoop)->bodies[0];
        Block added;
        for (OpCode code : codes) added.push_back(*first_of(body, code));
        for (Op& op : added) {
          op.symbol = added.front().symbol;
          if (op.region) op.region->origin[0] = Expr(0);
        }
        b.insert(b.end(), added.begin(), added.end());
      };
    };
    edit(program, true, more({OpCode::kPipePut}));
    if (got) edit(program, false, more({OpCode::kPipeGet, OpCode::kPipeRelease}));
    ProofResult result = prove(program);
    EXPECT_EQ(result.rejected(), !got) << result.report;
  }
}

}  // namespace
}  // namespace stretto::open_loops_test
