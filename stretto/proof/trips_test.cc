// Loops over slots that a table ends, proved once for every table. The reference is to look at
// every table, one by one. If these fail, either a worker may get stuck for some lengths of its
// sequences, or programs are refused that run to their end for all.
#include "stretto/base/test_seed.h"
#include "stretto/proof/trips.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "stretto/ir/printer.h"
#include "stretto/lang/program_builder.h"
#include "stretto/passes/pipeline.h"
#include "stretto/proof/expand.h"
#include "stretto/proof/loop_fold.h"
#include "stretto/proof/prove.h"

namespace stretto {
namespace {

constexpr std::int64_t kTiles = 2, kMost = 7, kStep = 16;

std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

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
};

// Tile t of `out` is the sum of the products of as many blocks as its entry says.
Program sums(const Sums& o) {
  ProgramBuilder p("sums", 1);
  auto counts = p.table("counts", {kTiles}, {ContractKind::kRange, 0, o.most + 1});
  std::vector<Index> shape = {16, o.most * kStep};
  auto a = o.of_inputs ? p.input("a", DType::kBF16, shape) : p.buffer("a", DType::kBF16, shape);
  auto b = p.input("b", DType::kBF16, shape);
  auto out = p.output("out", DType::kF32, {kTiles * 16, 16});
  auto made = p.signal("made");
  if (!o.of_inputs) {
    p.role("make", Resource::sms(1), p.range(o.most), [&](const Tile& t) {
      p.store(a.tile({0, t.index * kStep}, 16, kStep), p.zeros(DType::kBF16, 16, kStep));
      p.notify(made[0], p.rank());
    });
  }
  p.role("sum", Resource::sms(1).pipelined(o.num_slots), p.range(kTiles), [&](const Tile& t) {
    if (!o.of_inputs) p.wait(made[0], o.most);
    Value acc = p.zeros(DType::kF32, 16, 16);
    auto add = [&](const Index& tile) {
      p.loop(p.read(counts, {tile}), [&](const Index& i) {
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

TEST(Trips, LoopsThatTablesEndAreProvedForEveryTable) {
  for (int slots : {2, 3}) {
    Program program = sums({.num_slots = slots});
    ProofResult r = prove(program);
    EXPECT_TRUE(r.proved()) << r.report;
    EXPECT_TRUE(r.stats.every_table) << r.stats.sampled_because;
    EXPECT_TRUE(holds_for_all(program)) << slots;
  }
}

// What no entry of the table could say in advance does not make the proof longer.
TEST(Trips, EventsDoNotGrowWithTheTable) {
  auto events = [](std::int64_t most) { return expand(sums({.most = most}), {}).num_events(); };
  EXPECT_EQ(events(1000), events(10));
  EXPECT_GT(expand(sums({.most = 1000}), {}, nullptr, PipeLoopMode::kWalk, 6).num_events(),
            expand(sums({.most = 1000}), {}, nullptr, PipeLoopMode::kWalk, 5).num_events());
}

TEST(Trips, ReadsThatOthersWriteArePutToTheTest) {
  ProofResult r = prove(sums({.of_inputs = false}));
  EXPECT_EQ(r.verdict, Verdict::kNotComplete) << r.report;
  EXPECT_TRUE(holds_for_all(sums({.of_inputs = false})));
}

// How two loops of a tile go together is a matter of both their lengths.
TEST(Trips, LoopsOfDifferentLengthsInATileAreSampled) {
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

// Whatever is done to the agents: what is proved for every table is right for each.
TEST(Trips, NothingIsProvedThatGetsStuckForSomeTable) {
  std::uint64_t seed = test_seed();
  int right = 0, proved = 0, wrong = 0;
  for (int i = 0; i < 300; ++i) {
    SCOPED_TRACE(testing::Message() << "seed " << seed << " + " << i);
    std::mt19937_64 random(seed + static_cast<std::uint64_t>(i));
    Program program = sums({.num_slots = 2 + static_cast<int>(random() % 2)});
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
}  // namespace stretto
