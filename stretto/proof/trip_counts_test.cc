// Loops over slots that a table ends, proved once for every table. The reference is to look at
// every table, one by one. If these fail, either a worker may get stuck for some lengths of its
// sequences, or programs are refused that run to their end for all.
#include "stretto/base/at.h"
#include "stretto/proof/trip_counts.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <random>

#include "stretto/base/test_seed.h"
#include "stretto/ir/printer.h"
#include "stretto/lang/program_builder.h"
#include "stretto/passes/pipeline.h"
#include "stretto/proof/expand.h"
#include "stretto/proof/launch_patterns.h"
#include "stretto/proof/loop_fold.h"
#include "stretto/proof/prove.h"
#include "stretto/proof/prove_steps.h"
#include "stretto/proof/quota_check.h"

namespace stretto::trip_counts_test {
namespace {

constexpr std::int64_t kTiles = 2, kMost = 7, kStep = 16;

class Given : public TableWitness {
 public:
  explicit Given(std::vector<std::int64_t> counts) : counts_(std::move(counts)) {}
  std::int64_t value(int, int, std::span<const std::int64_t> index) const override {
    return counts_.at(at(index[0]));
  }
  std::string name() const override { return "given"; }

 private:
  std::vector<std::int64_t> counts_;
};

bool holds_for_all(const Program& program) {
  for (std::int64_t a = 0; a <= kMost; ++a) {
    for (std::int64_t b = 0; b <= kMost; ++b) {
      Given given({a, b});
      if (prove(program, {.tables = &given}).rejected()) return false;
    }
  }
  return true;
}

struct Sums {
  int num_slots = 2;
  std::int64_t most = kMost;
  bool of_inputs = true;   // false: of what another role makes
  bool two_loops = false;  // a tile has one by each of two entries
  // Each block is multiplied twice, as attention does, and none of its slots are held any longer:
  // such loops are taken whole (open_loops.h).
  bool twice = false;
  std::int64_t runs = 1;  // twice: tiles that share a sum, each with a part of its blocks
};

// Tile t of `out` is the sum of the products of as many blocks as its entry says.
Program sums(const Sums& o) {
  ProgramBuilder p("sums", 1);
  auto counts = p.table("counts", {kTiles}, {ContractKind::kRange, 0, o.most + 1});
  std::vector<Index> shape = {16, o.most * kStep};
  if (o.twice) std::swap(shape[0], shape[1]);
  const std::int64_t tiles = kTiles * o.runs;
  auto a = o.of_inputs ? p.input("a", DType::kBF16, shape) : p.buffer("a", DType::kBF16, shape);
  auto b = p.input("b", DType::kBF16, shape);
  auto out = p.output("out", DType::kF32, {tiles * 16, 16});
  auto made = p.signal("made");
  if (!o.of_inputs) {
    p.role("make", Resource::sms(1), p.range(o.most), [&](const Tile& t) {
      p.store(a.tile({0, t.index * kStep}, 16, kStep), p.zeros(DType::kBF16, 16, kStep));
      p.notify(made[0], p.rank());
    });
  }
  p.role("sum", Resource::sms(1).pipelined(o.num_slots), p.range(tiles), [&](const Tile& t) {
    if (!o.of_inputs) p.wait(made[0], o.most);
    Value query;
    if (o.twice) query = p.load(b.tile({0, 0}, 16, 16));
    Value acc = p.zeros(DType::kF32, 16, 16);
    auto add = [&](const Index& tile) {
      Index count = p.read(counts, {tile / o.runs}), begin = 0, end = count;
      if (o.runs > 1) {
        Index run = p.let("run", tile % o.runs);
        Index per_run = p.let("per_run", ceil_div(count, o.runs));
        begin = min(run * per_run, count);
        end = min((run + 1) * per_run, count);
      }
      p.loop(begin, end, [&](const Index& i) {
        if (o.twice) {
          auto block = [&](const TensorRef& of) { return p.load(of.tile({i * kStep, 0}, 16, 16)); };
          Value first = dot(p.zeros(DType::kF32, 16, 16), query, block(a).T());
          acc = dot(acc, cast(first, DType::kBF16), block(b));
          return;
        }
        acc = dot(acc, p.load(a.tile({0, i * kStep}, 16, kStep)),
                  p.load(b.tile({0, i * kStep}, 16, kStep)).T());
      });
    };
    add(t.index);
    if (o.two_loops) add(kTiles - 1 - t.index);
    p.store(out.tile({t.index * 16, 0}, 16, 16), acc);
  });
  return run_pipeline(p.finish());
}

TEST(TripCounts, LoopsThatTablesEndAreProvedForEveryTable) {
  for (int slots : {2, 3}) {
    for (std::int64_t runs : {0, 1, 3}) {
      Sums o{.num_slots = slots, .twice = runs > 0, .runs = std::max<std::int64_t>(runs, 1)};
      ProofResult r = prove(sums(o));
      EXPECT_TRUE(r.proved()) << r.report;
      EXPECT_TRUE(r.stats.every_table) << r.stats.sampled_because;
      EXPECT_TRUE(holds_for_all(sums(o))) << slots;
    }
  }
}

// What no entry of the table could say in advance does not make the proof longer.
TEST(TripCounts, EventsDoNotGrowWithTheTable) {
  auto events = [](std::int64_t most) { return expand(sums({.most = most}), {}).num_events(); };
  EXPECT_EQ(events(1000), events(10));
  EXPECT_GT(expand(sums({.most = 1000}), {}, nullptr, PipeLoopMode::kWalk, 6).num_events(),
            expand(sums({.most = 1000}), {}, nullptr, PipeLoopMode::kWalk, 5).num_events());
}

TEST(TripCounts, ReadsThatOthersWriteArePutToTheTest) {
  ProofResult r = prove(sums({.of_inputs = false}));
  EXPECT_EQ(r.verdict, Verdict::kNotComplete) << r.report;
  EXPECT_TRUE(holds_for_all(sums({.of_inputs = false})));
}

// How two loops of a tile go together is a matter of both their lengths.
TEST(TripCounts, LoopsOfDifferentLengthsInATileAreSampled) {
  ProofResult r = prove(sums({.two_loops = true}));
  EXPECT_EQ(r.verdict, Verdict::kNotComplete) << r.report;
  EXPECT_FALSE(r.stats.every_table);
}

// Blocks of the agents of the role with pipes, bodies of loops and conditions among them.
void collect(Block& block, std::vector<Block*>& blocks) {
  blocks.push_back(&block);
  for (Op& op : block) {
    for (Block& body : op.bodies) collect(body, blocks);
  }
}

// The variable that holds how often the role's loops run.
Expr count_of(const Program& program) {
  for (const Op& op : program.roles.back().agents[0].body) {
    bool reads = op.code == OpCode::kLet && op.exprs[0].node().op == ExprOp::kTable;
    if (reads) return Expr::var(op.var);
  }
  throw std::logic_error("no such variable");
}

Op on_condition(const Expr& condition, const Op& op) {
  return Op{.code = OpCode::kWhen, .exprs = {condition}, .bodies = {{op}, {}}, .loc = op.loc};
}

// What a loop does in rounds of two iterations, and what is left.
void in_rounds(Block& block, std::ptrdiff_t which) {
  Op &loop = block[at(which)], rest = loop;
  Expr begin = loop.exprs[0], end = loop.exprs[1];
  Block once = loop.bodies[0];
  loop.bodies[0].insert(loop.bodies[0].end(), once.begin(), once.end());
  loop.exprs = {0, (end - begin) / 2};
  rest.exprs[0] = begin + (end - begin) / 2 * 2;
  block.insert(block.begin() + which + 1, rest);
}

// One random change to how an agent passes slots.
void change(Program& program, std::mt19937_64& random) {
  auto below = [&](std::size_t n) { return static_cast<std::ptrdiff_t>(random() % n); };
  Role& role = program.roles.back();
  std::vector<Block*> blocks;
  for (Agent& agent : role.agents) collect(agent.body, blocks);
  Block& block = *blocks[random() % blocks.size()];
  if (block.empty()) return;
  auto op = block.begin() + below(block.size());
  bool is_loop = op->code == OpCode::kLoop;
  Expr few = below(at(kMost));
  switch (random() % 8) {
    case 0:
      role.pipes[random() % role.pipes.size()].num_slots = 1 + static_cast<int>(random() % 3);
      return;
    case 1:
      if (op + 1 != block.end()) std::iter_swap(op, op + 1);
      return;
    case 2:
      if (passes_slot(*op)) block.erase(op);
      return;
    case 3:
      if (passes_slot(*op)) block.insert(op, Op(*op));
      return;
    case 4:
      if (is_loop) op->exprs[1] = random() % 2 == 0 ? op->exprs[1] - 1 : min(op->exprs[1], few);
      return;
    case 5:
      if (is_loop) in_rounds(block, op - block.begin());
      return;
    case 6:
      if (passes_slot(*op)) *op = on_condition(few < count_of(program), *op);
      return;
    default:  // of the loop: on a condition, or out of it
      if (!is_loop || op->bodies[0].empty()) return;
      Op& inner = op->bodies[0][random() % op->bodies[0].size()];
      if (!passes_slot(inner)) return;
      Op moved = inner;
      if (random() % 2 == 0) {
        inner = on_condition(few < Expr::var(op->var), inner);
        if (random() % 2 == 0) return;
      }
      block.insert(random() % 2 == 0 ? op : op + 1, moved);
  }
}

// Tiles of two parts of some rows take turns, each over all keys of its part.
constexpr std::int64_t kRowsOfParts = 33;

Program parts() {
  ProgramBuilder p("parts", 1);
  auto starts = p.table("starts", {3}, {ContractKind::kPartition, 0, kRowsOfParts + 1});
  std::vector<Index> shape = {kRowsOfParts, kStep};
  auto q = p.input("q", DType::kBF16, shape), k = p.input("k", DType::kBF16, shape);
  auto v = p.input("v", DType::kBF16, shape);
  auto out = p.output("out", DType::kF32, shape);
  p.role("attend", Resource::sms(1).pipelined(2), p.range(2), [&](const Tile& t) {
    Index begin = p.read(starts, {t.index}), end = p.read(starts, {t.index + 1});
    p.loop(ceil_div(end - begin, kStep), [&](const Index& i) {
      Index row = p.let("row", begin + i * kStep);
      p.when(row < end, [&] {
        Index keys = p.let("keys", end - begin);
        auto block = [&](const TensorRef& of, const Index& from) {
          return p.load(of.tile({from, 0}, kStep, kStep));
        };
        Value query = block(q, row), acc = p.zeros(DType::kF32, kStep, kStep);
        p.loop(ceil_div(keys, kStep), [&](const Index& j) {
          Index from = begin + j * kStep;
          Value first = dot(p.zeros(DType::kF32, kStep, kStep), query, block(k, from).T());
          acc = dot(acc, cast(first, DType::kBF16), block(v, from));
        });
        p.store(out.tile({row, 0}, kStep, kStep).until_row(end), acc);
      });
    });
  });
  return run_pipeline(p.finish());
}

// Parts of many rows, each tile of which may have any rows of all: more iterations than are walked
// where there is another way.
Program long_parts(bool ends) {
  constexpr std::int64_t kParts = 16, kTile = 2, kRows = kTile * (kMostTurns / kParts + 16);
  ProgramBuilder p("long_parts", 1);
  auto starts = p.table("starts", {kParts + 1}, {ContractKind::kPartition, 0, kRows + 1});
  auto in = p.input("in", DType::kF32, {kRows, 4});
  auto out = p.output("out", DType::kF32, {kRows, 4});
  p.role("copy", Resource::sms(2), p.range(kParts), [&](const Tile& t) {
    Index begin = p.read(starts, {t.index}), end = p.read(starts, {t.index + 1});
    p.loop(ceil_div(end - begin, kTile), [&](const Index& i) {
      Index row = p.let("row", begin + i * kTile);
      p.when(row < end, [&] {
        Slice to = out.tile({row, 0}, kTile, 4);
        p.store(ends ? to.until_row(end) : to, p.load(in.tile({row, 0}, kTile, 4)));
      });
    });
  });
  return run_pipeline(p.finish());
}

TEST(TripCounts, ManyIterationsAreWalkedWhereThereIsNoOtherWay) {
  ProofResult right = prove(long_parts(true));
  EXPECT_TRUE(right.proved()) << right.report;
  EXPECT_TRUE(prove(long_parts(false)).rejected()) << "rows of two parts are stored twice";
}

bool parts_hold(const Program& program) {
  for (std::int64_t cut : {0, 1, 15, 16, 17, 31, 32, 33}) {
    Given given({0, cut, kRowsOfParts});
    if (prove(program, {.tables = &given}).rejected()) return false;
  }
  return true;
}

// With turns taken whole: nothing where they do not fit, else whether nothing is found.
std::optional<bool> holds_with_turns_whole(const Program& program) {
  InstanceGraph graph = expand(program, {}, nullptr, PipeLoopMode::kFold, {}, /*most_turns=*/0);
  bool whole = std::ranges::any_of(
      graph.counters, [](const Counter& c) { return c.kind == CounterKind::kMeeting; });
  if (!whole) return std::nullopt;
  if (wrong_counter(graph, "", graph.quota)) return false;
  std::optional<Case> slice = slice_of({graph, ""});
  if (!slice) return false;
  SizesVerdict verdict = prove_sizes({{&slice->graph, ""}}, {}, 64, 1);
  return std::ranges::all_of(verdict.orders, [](const OrderVerdict& v) {
    return v.findings.empty() && v.error == nullptr;
  });
}

TEST(TripCounts, TurnsOfTilesAreTakenWhole) {
  EXPECT_EQ(holds_with_turns_whole(parts()), true);
  ProofResult one_by_one = prove(parts());
  EXPECT_TRUE(one_by_one.proved()) << one_by_one.report;
  EXPECT_TRUE(parts_hold(parts()));
}

TEST(TripCounts, NothingHoldsThatGetsStuckInSomeTurn) {
  std::uint64_t seed = test_seed();
  int right = 0, proved = 0, wrong = 0;
  for (int i = 0; i < 150; ++i) {
    SCOPED_TRACE(testing::Message() << "seed " << seed << " + " << i);
    std::mt19937_64 random(seed + static_cast<std::uint64_t>(i));
    Program program = parts();
    for (std::uint64_t n = random() % 2 + 1; n > 0; --n) change(program, random);
    bool holds = parts_hold(program), whole = false;
    try {
      whole = holds_with_turns_whole(program).value_or(false);
    } catch (const Rejected&) {  // of what does not fit
    } catch (const DependsOnTable&) {
    }
    EXPECT_FALSE(whole && !holds) << "accepted a broken program: " << print(program);
    (holds ? right : wrong) += 1;
    proved += whole ? 1 : 0;
  }
  printf("%d programs right for some tables, %d of them shown so; %d wrong\n", right, proved,
         wrong);
  EXPECT_GT(proved, 0);
  EXPECT_GT(wrong, 0);
}

// Whatever is done to the agents: what is proved for every table is right for each.
TEST(TripCounts, NothingIsProvedThatGetsStuckForSomeTable) {
  std::uint64_t seed = test_seed();
  int right = 0, proved = 0, wrong = 0;
  for (int i = 0; i < 300; ++i) {
    SCOPED_TRACE(testing::Message() << "seed " << seed << " + " << i);
    std::mt19937_64 random(seed + static_cast<std::uint64_t>(i));
    Sums o{.num_slots = 2 + static_cast<int>(random() % 2), .twice = random() % 2 == 0};
    if (o.twice) o.runs = 1 + static_cast<std::int64_t>(random() % 2);
    Program program = sums(o);
    for (std::uint64_t n = random() % 3 + 1; n > 0; --n) change(program, random);
    bool holds = holds_for_all(program);
    ProofResult r = prove(program);
    bool every = r.proved() && r.stats.every_table;
    EXPECT_FALSE(every && !holds) << "accepted a broken program: " << print(program);
    EXPECT_FALSE(holds && r.rejected()) << r.report;
    (holds ? right : wrong) += 1;
    proved += every ? 1 : 0;
  }
  printf("%d programs right for every table, %d of them proved so; %d wrong\n", right, proved,
         wrong);
  EXPECT_GT(proved, 0);
  EXPECT_GT(wrong, 0);
}

}  // namespace
}  // namespace stretto::trip_counts_test
