// An agent that stores for another must store the same bits, publish nothing before it is stored,
// and leave alone what it cannot order. If these fail, overlapped stores give wrong results or a
// peer reads what is not there yet.
#include "stretto/passes/epilogue_stores.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "stretto/base/test_errors.h"
#include "stretto/base/test_seed.h"
#include "stretto/executor/controlled.h"
#include "stretto/executor/program_runner.h"
#include "stretto/ir/parser.h"
#include "stretto/ir/printer.h"
#include "stretto/lang/program_builder.h"
#include "stretto/passes/pipeline.h"
#include "stretto/proof/prove.h"

namespace stretto::epilogue_stores_test {
namespace {

constexpr std::int64_t kRows = 13, kCols = 75, kK = 21;

struct Options {
  int store_slots = 2;
  bool row_limit = false, col_limit = false;
  bool early_notify = false;
};

// Every rank stores tiles of a * b^T into the next one's buffer, says so tile by tile, and hands on
// what it was given.
Program passed_on(const Options& o, int world = 2) {
  ProgramBuilder p("passed_on", world);
  auto a = p.input("a", DType::kF32, {kRows, kK});
  auto b = p.input("b", DType::kF32, {kCols, kK});
  auto got = p.buffer("got", DType::kF32, {kRows, kCols}, {.space = Space::kSymmetric});
  auto c = p.output("c", DType::kF32, {kRows, kCols});
  auto ready = p.signal("ready", 1);
  auto arrived = p.signal("arrived", 4);
  Index next = (p.rank() + 1) % world, last = (p.rank() + (world - 1)) % world;
  p.on_start([&] { p.notify(ready[0], last); });
  p.role("multiply", Resource::sms(2).pipelined(2).with_epilogue(o.store_slots), p.grid(c, 8, 64),
         [&](const Tile& t) {
           Value acc = p.zeros(DType::kF32, 8, 64);
           p.loop(ceil_div(kK, 8), [&](const Index& i) {
             acc = dot(acc, p.load(a.tile({t.row, i * 8}, 8, 8)),
                       p.load(b.tile({t.col, i * 8}, 64, 8)).T());
           });
           p.wait(ready[0], 1);
           Slice to = got.tile({t.row, t.col}, 8, 64).on(next);
           if (o.early_notify) p.notify(arrived[t.index], next);
           if (o.row_limit) to = to.until_row(kRows);
           p.store(o.col_limit ? to.until_col(kCols) : to, acc);
           if (!o.early_notify) p.notify(arrived[t.index], next);
         });
  p.role("hand_on", Resource::sms(1), p.grid(c, 8, 64), [&](const Tile& t) {
    p.wait(arrived[t.index], 1);
    p.store(c.tile({t.row, t.col}, 8, 64), p.load(got.tile({t.row, t.col}, 8, 64)));
  });
  return p.finish();
}

std::shared_ptr<const Program> scheduled(const Options& o) {
  return std::make_shared<const Program>(run_pipeline(passed_on(o)));
}

std::vector<OpCode> codes(const Block& block) {
  std::vector<OpCode> out;
  for (const Op& op : block) {
    if (op.code != OpCode::kLet) out.push_back(op.code);
    for (const Block& body : op.bodies) {
      std::vector<OpCode> inner = codes(body);
      out.insert(out.end(), inner.begin(), inner.end());
    }
  }
  return out;
}

std::size_t count(const Block& block, OpCode code) {
  std::vector<OpCode> all = codes(block);
  return static_cast<std::size_t>(std::count(all.begin(), all.end(), code));
}

TEST(EpilogueStores, TheEpilogueStoresWhatTheConsumerFilledAndNotifies) {
  auto program = scheduled({});
  const Role& role = program->roles[0];
  ASSERT_EQ(role.agents.size(), 3u) << print(*program);
  const Agent &consumer = role.agents[1], &epilogue = role.agents[2];
  EXPECT_EQ(epilogue.kind, AgentKind::kEpilogue);
  // A row of a slot is 32 columns of f32.
  EXPECT_EQ(count(consumer.body, OpCode::kPipeFill), 2u);
  for (OpCode code : {OpCode::kStore, OpCode::kNotify, OpCode::kWait}) {
    EXPECT_EQ(count(consumer.body, code), 0u) << print(*program);
  }
  std::vector<OpCode> want = {OpCode::kWait,  OpCode::kLoop,        OpCode::kPipeGet,
                              OpCode::kStore, OpCode::kPipeRelease, OpCode::kNotify};
  EXPECT_EQ(codes(epilogue.body), want) << print(*program);
  EXPECT_EQ(print(parse(print(*program), "apart")), print(*program));
}

TEST(EpilogueStores, TheSameBitsAsWithout) {
  std::uint64_t seed = test_seed();
  SCOPED_TRACE("STRETTO_TEST_SEED=" + std::to_string(seed));
  std::mt19937_64 random(seed);
  auto numbers = [&](std::int64_t n) {
    Doubles v(static_cast<std::size_t>(n));
    for (double& x : v) x = static_cast<double>(random() % 2001) / 1000 - 1;
    return v;
  };
  Doubles a = numbers(kRows * kK), b = numbers(kCols * kK);
  auto run = [&](const Options& o) {
    auto program = scheduled(o);
    std::vector<Doubles> c(2);
    World world({.size = 2});
    run_program(world, program, [&](Rank& rank, Instance& instance, RankArguments& arguments) {
      arguments.set("a", a);
      arguments.set("b", b);
      for (int e = 0; e < 3; ++e) instance.launch(arguments.args, arguments.extents);
      c[static_cast<std::size_t>(rank.index())] = arguments.get("c");
    });
    return c;
  };
  std::vector<Doubles> whole = run({.store_slots = 0});
  EXPECT_EQ(run({.store_slots = 1}), whole);
  EXPECT_EQ(run({.store_slots = 3}), whole);
  EXPECT_EQ(scheduled({.row_limit = true})->roles[0].agents.size(), 3u);
  EXPECT_EQ(run({.row_limit = true}), whole);
}

TEST(EpilogueStores, NoScheduleFindsARaceAndTheProofAgrees) {
  auto program = scheduled({});
  ProofResult proof = prove(*program);
  EXPECT_TRUE(proof.proved()) << proof.report;
  Quotas quotas = count_quotas(*program, {});
  std::uint64_t seed = test_seed();
  for (std::uint64_t i = 0; i < 40; ++i) {
    ControlledOptions options{.launches = 3, .seed = seed + i, .compute = false};
    options.policy = static_cast<SchedulePolicy>(i % 4);
    ControlledResult result = run_controlled(program, quotas, options);
    EXPECT_TRUE(result.ok()) << result.report;
  }
}

Block::iterator find(Block& block, OpCode code) {
  return std::find_if(block.begin(), block.end(), [&](const Op& op) { return op.code == code; });
}

// Whatever is taken from the epilogue warp's order is missed.
TEST(EpilogueStores, TheProofMissesWhatIsTakenAway) {
  const Program whole = *scheduled({});
  auto epilogue = [](Program& p) -> Block& { return p.roles[0].agents[2].body; };
  auto slots = [&](Program& p) -> Block& { return find(epilogue(p), OpCode::kLoop)->bodies[0]; };
  auto rejects = [&](const std::string& what, const auto& edit) {
    Program program = whole;
    edit(program);
    EXPECT_TRUE(prove(program).rejected()) << what;
  };
  rejects("notify before the store", [&](Program& p) {
    Block& body = epilogue(p);
    std::iter_swap(find(body, OpCode::kNotify), find(body, OpCode::kLoop));
  });
  rejects("no wait", [&](Program& p) { epilogue(p).erase(find(epilogue(p), OpCode::kWait)); });
  rejects("store after the release", [&](Program& p) {
    std::iter_swap(find(slots(p), OpCode::kStore), find(slots(p), OpCode::kPipeRelease));
  });
  rejects("no release", [&](Program& p) { slots(p).erase(find(slots(p), OpCode::kPipeRelease)); });
  rejects("no get", [&](Program& p) { slots(p).erase(find(slots(p), OpCode::kPipeGet)); });
  rejects("a fill too few", [&](Program& p) {
    Block& body = p.roles[0].agents[1].body;
    body.erase(find(body, OpCode::kPipeFill));
  });
}

// In the lowered code a notify has to see stores complete, not merely read.
TEST(EpilogueStores, ANotifyWaitsForTheEpiloguesStoresByTma) {
  ProgramBuilder p("published", 2);
  auto a = p.input("a", DType::kBF16, {64, 64});
  auto got = p.buffer("got", DType::kBF16, {64, 64}, {.space = Space::kSymmetric});
  auto c = p.output("c", DType::kBF16, {64, 64});
  auto ready = p.signal("ready", 1), arrived = p.signal("arrived", 1);
  Index other = 1 - p.rank();
  p.on_start([&] { p.notify(ready[0], other); });
  p.role("multiply", Resource::sms(1).pipelined(2).with_epilogue(2), p.range(1), [&](const Tile&) {
    Value acc = p.zeros(DType::kF32, 64, 64);
    p.loop(1, [&](const Index&) {
      acc = dot(acc, p.load(a.tile({0, 0}, 64, 64)), p.load(a.tile({0, 0}, 64, 64)).T());
    });
    p.wait(ready[0], 1);
    p.store(got.tile({0, 0}, 64, 64).on(other), cast(acc, DType::kBF16));
    p.notify(arrived[0], other);
  });
  p.role("hand_on", Resource::sms(1), p.range(1), [&](const Tile&) {
    p.wait(arrived[0], 1);
    p.store(c.tile({0, 0}, 64, 64), p.load(got.tile({0, 0}, 64, 64)));
  });
  Program program = run_pipeline(p.finish());
  ASSERT_EQ(program.roles[0].agents.size(), 3u);
  EXPECT_TRUE(prove(program).proved()) << prove(program).report;
  SyncTable table = sync_table();
  table[SyncRow::kNotify][0].kind = StepKind::kReadStores;
  ProofResult weak = prove(program, {.table = &table});
  EXPECT_TRUE(weak.rejected());
  EXPECT_NE(weak.report.find("a store by TMA is not over"), std::string::npos) << weak.report;
}

TEST(EpilogueStores, StoresThatItCannotOrderAreRefused) {
  EXPECT_EQ(scheduled({.store_slots = 0})->roles[0].agents.size(), 2u);
  expect_user_error([] { scheduled({.col_limit = true}); },
                    {"passed_on: role 'multiply'", "store_slots = 2", "does not come in slots",
                     "2 ranks, a f32[13, 21]", "c f32[13, 75]"});
  expect_user_error([] { scheduled({.early_notify = true}); },
                    {"store_slots = 2", "notifies of something other than stores"});
}

}  // namespace
}  // namespace stretto::epilogue_stores_test
