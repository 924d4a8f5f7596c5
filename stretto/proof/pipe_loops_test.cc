// Loops of which a few iterations stand for all: as many events however long they are, and nothing
// in the middle is overlooked.
#include "stretto/proof/pipe_loops.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "stretto/lang/program_builder.h"
#include "stretto/passes/pipeline.h"
#include "stretto/proof/expand.h"
#include "stretto/proof/prove.h"

namespace stretto::pipe_loops_test {
namespace {

constexpr int kSlots = 3;
constexpr std::int64_t kStep = 16;

// out = a * b^T over `trips` steps, in a producer and a consumer agent. `a` is made by another
// role, all of it but step `forgotten`.
Program product(std::int64_t trips, std::int64_t forgotten = -1) {
  ProgramBuilder p("product", 1);
  auto b = p.input("b", DType::kBF16, {16, trips * kStep});
  auto a = p.buffer("a", DType::kBF16, {16, trips * kStep});
  auto out = p.output("out", DType::kF32, {32, 16});
  auto made = p.signal("made");
  p.role("make", Resource::sms(1), p.range(trips), [&](const Tile& t) {
    p.when(t.index != forgotten, [&] {
      p.store(a.tile({0, t.index * kStep}, 16, kStep), p.zeros(DType::kBF16, 16, kStep));
    });
    p.notify(made[0], p.rank());
  });
  p.role("multiply", Resource::sms(1).pipelined(kSlots), p.range(2), [&](const Tile& t) {
    p.wait(made[0], trips);
    Value acc = p.zeros(DType::kF32, 16, 16);
    p.loop(trips, [&](const Index& i) {
      acc = dot(acc, p.load(a.tile({0, i * kStep}, 16, kStep)),
                p.load(b.tile({0, i * kStep}, 16, kStep)).T());
    });
    p.store(out.tile({t.index * 16, 0}, 16, 16), acc);
  });
  return run_pipeline(p.finish());
}

// The loop over slots of the agent of role "multiply".
Op& loop_of(Program& program, AgentKind kind) {
  for (Agent& agent : program.roles[1].agents) {
    if ((agent.kind == AgentKind::kProducer) != (kind == AgentKind::kProducer)) continue;
    for (Op& op : agent.body) {
      if (op.code == OpCode::kLoop) return op;
    }
  }
  throw std::logic_error("no such loop");
}

std::size_t events(const Program& program, PipeLoopMode mode) {
  return expand(program, {}, nullptr, mode).num_events();
}

TEST(PipeLoops, EventsDoNotGrowWithTheLoop) {
  Program shorter = product(100), longer = product(1000);
  std::size_t made = 900 * 2;  // role "make" is walked: a store and a notify
  EXPECT_EQ(events(longer, PipeLoopMode::kFold), events(shorter, PipeLoopMode::kFold) + made);
  EXPECT_GT(events(longer, PipeLoopMode::kWalk), events(shorter, PipeLoopMode::kWalk) + 2 * made);
  ProofResult result = prove(longer);
  EXPECT_TRUE(result.proved()) << result.report;
}

// Slots that are released before the next is got, as where a product is awaited at once.
Program released_at_once() {
  Program program = product(100);
  for (Agent& agent : program.roles[1].agents) {
    if (agent.kind == AgentKind::kProducer) continue;
    std::erase_if(agent.body, [](const Op& op) { return op.code == OpCode::kPipeRelease; });
    Block& body = loop_of(program, AgentKind::kConsumer).bodies[0];
    auto when = std::find_if(body.begin(), body.end(),
                             [](const Op& op) { return op.code == OpCode::kWhen; });
    Block releases = when->bodies[0];
    body.erase(when);
    for (Op& op : body) {
      if (op.code == OpCode::kAwait) op.exprs[0] = Expr(0);
    }
    body.insert(body.end(), releases.begin(), releases.end());
  }
  return program;
}

TEST(PipeLoops, SlotsMayBeReleasedInTheirIteration) {
  Program program = released_at_once();
  ProofResult result = prove(program);
  EXPECT_TRUE(result.proved()) << result.report;
  EXPECT_LT(events(program, PipeLoopMode::kFold), events(program, PipeLoopMode::kWalk));
}

TEST(PipeLoops, ShortLoopsAreWalked) {
  Program program = product(kSlots + 2);
  EXPECT_EQ(events(program, PipeLoopMode::kFold), events(program, PipeLoopMode::kWalk));
}

TEST(PipeLoops, WhatTheMiddleReadsHasToBeThere) {
  for (std::int64_t forgotten : {0, 1, 50, 98, 99}) {
    ProofResult result = prove(product(100, forgotten));
    ASSERT_TRUE(result.rejected()) << "step " << forgotten;
    EXPECT_EQ(result.findings[0].kind, FindingKind::kUncovered) << result.report;
  }
}

// Only one iteration reads what is missing, by an index that a condition sets.
TEST(PipeLoops, AnIndexSetOnAConditionIsLookedAtEachTime) {
  Program program = product(40, 20);
  Block& body = loop_of(program, AgentKind::kProducer).bodies[0];
  Expr step = Expr::var(loop_of(program, AgentKind::kProducer).var);
  int chosen = static_cast<int>(program.vars.size());
  program.vars.push_back({"chosen", VarKind::kLet});
  for (Op& op : body) {
    bool put = op.code == OpCode::kPipePut && program.tensors[op.region->tensor].name == "a";
    if (put) op.region->origin[1] = Expr::var(chosen) * kStep;
  }
  Op let{.code = OpCode::kLet, .exprs = {select(step == 20, 20, 0)}, .var = chosen};
  Op when{.code = OpCode::kWhen, .exprs = {Expr(0) <= step}, .bodies = {{let}, {}}};
  body.insert(body.begin(), when);
  ProofResult result = prove(program);
  ASSERT_TRUE(result.rejected());
  EXPECT_EQ(result.findings[0].kind, FindingKind::kUncovered) << result.report;
}

TEST(PipeLoops, AgentsThatLeaveOutDifferentlyAreWalked) {
  Program one_more = product(100);
  Op& producer = loop_of(one_more, AgentKind::kProducer);
  producer.exprs[1] = producer.exprs[1] + 1;
  EXPECT_TRUE(prove(one_more).rejected());
  Program late = product(100);  // a slot is released from the middle of the loop on
  for (Op& op : loop_of(late, AgentKind::kConsumer).bodies[0]) {
    if (op.code == OpCode::kWhen) op.exprs[0] = Expr(50) < op.exprs[0].node().args[1];
  }
  EXPECT_TRUE(prove(late).rejected());
}

// Registers of the last iterations alone, as masks of ragged ends are.
TEST(PipeLoops, ChoicesOfRegistersHideNothing) {
  for (bool reads_slot : {false, true}) {
    Program program = released_at_once();
    Op& loop = loop_of(program, AgentKind::kConsumer);
    Block& body = loop.bodies[0];
    int slot = -1;
    for (const Op& op : body) slot = op.code == OpCode::kPipeGet ? op.result : slot;
    constexpr int kOther = 1000;
    Op use{.code = OpCode::kCast, .result = kOther, .operands = {reads_slot ? slot : kOther}};
    use.loc = loop.loc;
    Op when{.code = OpCode::kWhen, .exprs = {Expr(50) <= Expr::var(loop.var)}};
    when.bodies = {{use}, {}};
    body.insert(body.begin(), when);  // the slot of the iteration before
    ProofResult result = prove(program);
    EXPECT_EQ(result.proved(), !reads_slot) << result.report;
    if (reads_slot) continue;
    EXPECT_LT(events(program, PipeLoopMode::kFold), events(program, PipeLoopMode::kWalk));
  }
}

// A loop after the product looks at a slot that is free again, in its sixth iteration alone.
TEST(PipeLoops, ASlotMayNotBeReadLaterInNoIteration) {
  for (bool reads_slot : {false, true}) {
    Program program = product(100);
    int slot = -1;
    for (const Op& op : loop_of(program, AgentKind::kConsumer).bodies[0]) {
      if (op.code == OpCode::kPipeGet) slot = op.result;
    }
    ASSERT_GE(slot, 0);
    Op& product_loop = loop_of(program, AgentKind::kConsumer);
    constexpr int kOther = 1000;
    Op use{.code = OpCode::kCast, .result = kOther, .operands = {reads_slot ? slot : kOther}};
    use.loc = product_loop.loc;
    Op when{.code = OpCode::kWhen, .exprs = {Expr::var(product_loop.var) == 5}};
    when.bodies = {{use}, {}};
    Op loop{.code = OpCode::kLoop, .exprs = {0, 10}, .var = product_loop.var};
    loop.bodies = {{when}};
    for (Agent& agent : program.roles[1].agents) {
      if (agent.kind != AgentKind::kProducer) agent.body.push_back(loop);
    }
    ProofResult result = prove(program);
    EXPECT_EQ(result.proved(), !reads_slot) << result.report;
  }
}

struct Parts {
  std::int64_t trips = 100;
  std::int64_t forgotten = -1;  // step of the second part that nobody makes
  bool waits = true;
  bool along_rows = false;  // the steps
};

// out[part] = the part's rows of `a`, which a table deals out, * b^T over `trips` steps.
Program product_of_parts(const Parts& o) {
  constexpr std::int64_t kParts = 3;
  ProgramBuilder p("product_of_parts", 1);
  std::int64_t rows = o.along_rows ? o.trips * 16 : 16, cols = o.along_rows ? 1 : o.trips;
  auto offsets = p.table("offsets", {kParts + 1}, {ContractKind::kPartition, 0, rows + 1});
  auto b = p.input("b", DType::kBF16, {16, o.trips * kStep});
  auto a = p.buffer("a", DType::kBF16, {rows, cols * kStep});
  auto out = p.output("out", DType::kF32, {kParts * 16, 16});
  auto made = p.signal("made", kParts);
  auto step_of = [&](const Index& row, const Index& i) {
    if (o.along_rows) return a.tile({row + i * 16, 0}, 16, kStep);
    return a.tile({row, i * kStep}, 16, kStep);
  };
  p.role("make", Resource::sms(1), p.range(kParts * o.trips), [&](const Tile& t) {
    Index part = p.let("part", t.index / o.trips);
    Index row = p.read(offsets, {part}), end = p.read(offsets, {part + 1});
    p.when(t.index != (o.forgotten < 0 ? -1 : o.trips + o.forgotten), [&] {
      p.store(step_of(row, t.index % o.trips).until_row(end), p.zeros(DType::kBF16, 16, kStep));
    });
    p.notify(made[part], p.rank());
  });
  p.role("multiply", Resource::sms(1).pipelined(kSlots), p.range(kParts), [&](const Tile& t) {
    Index row = p.read(offsets, {t.index}), end = p.read(offsets, {t.index + 1});
    if (o.waits) p.wait(made[t.index], o.trips);
    Value acc = p.zeros(DType::kF32, 16, 16);
    p.loop(o.trips, [&](const Index& i) {
      acc = dot(acc, p.load(step_of(row, i).until_row(end)),
                p.load(b.tile({0, i * kStep}, 16, kStep)).T());
    });
    p.store(out.tile({t.index * 16, 0}, 16, 16), acc);
  });
  return run_pipeline(p.finish());
}

// A grouped product would not be proved in time otherwise.
TEST(PipeLoops, RowsThatATableDealsOutFoldTheSame) {
  Program shorter = product_of_parts({}), longer = product_of_parts({.trips = 1000});
  std::size_t made = 3 * 900 * 4;  // role "make": two entries of the table, a store and a notify
  EXPECT_EQ(events(longer, PipeLoopMode::kFold), events(shorter, PipeLoopMode::kFold) + made);
  EXPECT_LT(2 * events(longer, PipeLoopMode::kFold), events(longer, PipeLoopMode::kWalk));
  ProofResult result = prove(longer);
  EXPECT_TRUE(result.proved()) << result.report;
  EXPECT_TRUE(result.stats.every_table) << result.stats.sampled_because;
}

TEST(PipeLoops, WhatTheMiddleReadsOfAPartHasToBeThere) {
  for (std::int64_t forgotten : {0, 1, 50, 98, 99}) {
    ProofResult result = prove(product_of_parts({.forgotten = forgotten}));
    ASSERT_TRUE(result.rejected()) << "step " << forgotten;
    EXPECT_EQ(result.findings[0].kind, FindingKind::kUncovered) << result.report;
  }
  ProofResult result = prove(product_of_parts({.waits = false}));
  ASSERT_TRUE(result.rejected());
  EXPECT_EQ(result.findings[0].kind, FindingKind::kRace) << result.report;
}

// Where a step lies then depends on how long the part is.
TEST(PipeLoops, StepsAlongRowsThatATableDealsOutAreWalked) {
  Program program = product_of_parts({.trips = 20, .along_rows = true});
  EXPECT_EQ(events(program, PipeLoopMode::kFold), events(program, PipeLoopMode::kWalk));
}

// A product, then a loop over inputs that a table picks, not all of whose iterations are walked. In
// one of them a register is read that holds a slot, which was released before.
struct LateUse {
  std::int64_t at = 0;
  bool of_slot = true, sized = false, nested = false;
};
Program with_late_use(const LateUse& use) {
  constexpr std::int64_t kTrips = 128;
  ProgramBuilder p("late_use", 1);
  auto a = p.input("a", DType::kBF16, {16, 4 * kStep});
  auto b = p.input("b", DType::kBF16, {16, 4 * kStep});
  Index trips = use.sized ? p.extent("m", kTrips) : Index(kTrips);
  auto page = p.table("page", {kTrips}, {ContractKind::kRange, 0, kTrips});
  auto k = p.input("k", DType::kF32, {kTrips, 16});
  auto out = p.output("out", DType::kF32, {16, 16});
  p.role("multiply", Resource::sms(1).pipelined(kSlots), p.range(1), [&](const Tile&) {
    Value acc = p.zeros(DType::kF32, 16, 16), sum = p.zeros(DType::kF32, 1, 16);
    p.loop(4, [&](const Index& i) {
      acc = dot(acc, p.load(a.tile({0, i * kStep}, 16, kStep)),
                p.load(b.tile({0, i * kStep}, 16, kStep)).T());
    });
    Value more = p.zeros(DType::kBF16, 16, 16);
    auto add = [&] { acc = acc + cast(more, DType::kF32); };
    p.loop(trips, [&](const Index& i) {
      Index row = use.sized ? i : p.read(page, {i});
      sum = sum + p.load(k.tile({row, 0}, 1, 16));
      p.when(i == use.at, [&] { use.nested ? p.when(i % 2 == 0, add) : add(); });
    });
    p.store(out.tile({0, 0}, 16, 16), acc + sum);
  });
  Program program = run_pipeline(p.finish());
  if (!use.of_slot) return program;
  for (Agent& agent : program.roles[0].agents) {
    int slot = -1;
    std::function<void(Block&)> look = [&](Block& block) {
      for (Op& op : block) {
        if (op.code == OpCode::kPipeGet) slot = op.result;
        if (op.code == OpCode::kCast && slot >= 0) op.operands[0] = slot;
        for (Block& body : op.bodies) look(body);
      }
    };
    look(agent.body);
  }
  return program;
}

TEST(PipeLoops, ASlotThatALaterLoopReadsInItsMiddleIsNotOverlooked) {
  for (std::int64_t at : {0, 20, 126}) {
    for (bool sized : {false, true}) {
      for (bool nested : {false, true}) {
        SCOPED_TRACE(fmt::format("at {} sized {} nested {}", at, sized, nested));
        LateUse use{.at = at, .of_slot = false, .sized = sized, .nested = nested};
        ProofResult right = prove(with_late_use(use));
        EXPECT_TRUE(right.proved()) << right.report;
        use.of_slot = true;
        ProofResult late = prove(with_late_use(use));
        ASSERT_TRUE(late.rejected()) << late.report;
        EXPECT_NE(late.report.find("released before"), std::string::npos) << late.report;
      }
    }
  }
}

TEST(PipeLoops, ACycleOfWaitsShowsItself) {
  Program program = product(100);
  // The consumer keeps all slots until it has got the last.
  for (Agent& agent : program.roles[1].agents) {
    if (agent.kind == AgentKind::kProducer) continue;
    auto loop = std::find_if(agent.body.begin(), agent.body.end(),
                             [](const Op& op) { return op.code == OpCode::kLoop; });
    Op releases = *loop;
    std::erase_if(loop->bodies[0], [](const Op& op) { return op.code == OpCode::kWhen; });
    std::erase_if(releases.bodies[0], [](const Op& op) { return op.code != OpCode::kWhen; });
    agent.body.insert(loop + 1, releases);
  }
  ProofResult result = prove(program);
  ASSERT_TRUE(result.rejected());
  EXPECT_EQ(result.findings[0].kind, FindingKind::kProgress) << result.report;
}

// Two agents that multiply tiles in turn, every other step of which they leave out: the producer
// leaves out iterations, they do not, so that they get more slots than it has put until all is
// walked.
TEST(PipeLoops, AgentsInTurnMayLeaveOutSteps) {
  constexpr std::int64_t kTrips = 12;
  ProgramBuilder p("in_turn", 1);
  auto a = p.input("a", DType::kBF16, {4 * kStep, kTrips * kStep});
  auto b = p.input("b", DType::kBF16, {kStep, kTrips * kStep});
  auto out = p.output("out", DType::kF32, {4 * kStep, kStep});
  p.role("gemm", Resource::sms(1).pipelined(kSlots).ping_pong(2), p.range(4), [&](const Tile& t) {
    Value acc = p.zeros(DType::kF32, kStep, kStep);
    p.loop(kTrips, [&](const Index& i) {
      Value x = p.load(a.tile({t.index * kStep, i * kStep}, kStep, kStep));
      Value y = p.load(b.tile({0, i * kStep}, kStep, kStep));
      p.when(i % 2 == 0, [&] { acc = dot(acc, x, y.T()); });
    });
    p.store(out.tile({t.index * kStep, 0}, kStep, kStep), acc);
  });
  ProofResult result = prove(run_pipeline(p.finish()));
  EXPECT_TRUE(result.proved()) << result.report;
}

}  // namespace
}  // namespace stretto::pipe_loops_test
