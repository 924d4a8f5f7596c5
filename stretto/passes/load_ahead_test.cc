// What is added to a product may be loaded before the product is done. If these fail, sums are of
// other bits than without, a load overtakes the signal that it has to wait for, or the factors'
// slots are held for longer than they are free.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "stretto/base/test_seed.h"
#include "stretto/executor/program_runner.h"
#include "stretto/ir/parser.h"
#include "stretto/ir/printer.h"
#include "stretto/lang/program_builder.h"
#include "stretto/passes/pipeline.h"
#include "stretto/proof/prove.h"

namespace stretto::load_ahead_test {
namespace {

constexpr int kWorld = 2;
constexpr std::int64_t kRows = 13, kCols = 43, kK = 21, kPart = 8;

// c = a * b^T + what the other rank has sent, eight columns at a time.
Program sums(int load_slots, int store_slots) {
  ProgramBuilder p("sums", kWorld);
  auto a = p.input("a", DType::kF32, {kRows, kK});
  auto b = p.input("b", DType::kF32, {kCols, kK});
  auto x = p.input("x", DType::kF32, {kRows, kCols});
  auto got = p.buffer("got", DType::kF32, {kRows, kCols}, {.space = Space::kSymmetric});
  auto c = p.output("c", DType::kF32, {kRows, kCols});
  auto ready = p.signal("ready"), arrived = p.signal("arrived");
  p.on_start([&] { p.notify_all(ready); });
  Index other = (p.rank() + 1) % kWorld;
  p.role("send", Resource::sms(1), p.range(1), [&](const Tile&) {
    p.wait(ready, other);
    p.store(got.tile({0, 0}, 16, 48).on(other), p.load(x.tile({0, 0}, 16, 48)));
    p.notify(arrived, other);
  });
  Resource sms = Resource::sms(2).pipelined(3).with_epilogue(store_slots).loading_ahead(load_slots);
  p.role("multiply", sms, p.grid(c, 8, 2 * kPart), [&](const Tile& t) {
    Value acc = p.zeros(DType::kF32, 8, 2 * kPart);
    p.loop(ceil_div(kK, 8), [&](const Index& i) {
      acc = dot(acc, p.load(a.tile({t.row, i * 8}, 8, 8)),
                p.load(b.tile({t.col, i * 8}, 2 * kPart, 8)).T());
    });
    p.wait(arrived, other);
    for (std::int64_t col : {std::int64_t{0}, kPart}) {
      Slice part = got.tile({t.row, t.col + col}, 8, kPart);
      Value sum = columns(acc, col, kPart) + p.load(part.until_row(kRows));
      p.store(c.tile({t.row, t.col + col}, 8, kPart), sum);
    }
  });
  return p.finish();
}

const Role& multiply(const Program& program) { return program.roles[1]; }

int count(const Block& block, OpCode code) {
  int n = 0;
  for (const Op& op : block) {
    n += op.code == code;
    for (const Block& body : op.bodies) n += count(body, code);
  }
  return n;
}

TEST(LoadAhead, ThroughAPipeOfItsOwnOrTheFactors) {
  for (int slots : {1, 2, 3, 4}) {
    Program schedule = run_pipeline(sums(slots, 0));
    const Role& role = multiply(schedule);
    ASSERT_EQ(role.agents.size(), 2U) << print(schedule);
    ASSERT_EQ(role.pipes.size(), slots == 3 ? 2U : 3U) << print(schedule);
    EXPECT_EQ(role.pipes.back().num_slots, slots == 3 ? role.resource.num_stages : slots);
    EXPECT_EQ(count(role.agents[0].body, OpCode::kPipePut), 4);
    EXPECT_EQ(count(role.agents[0].body, OpCode::kWait), 1);
    EXPECT_EQ(count(role.agents[1].body, OpCode::kLoad), 0);
    EXPECT_EQ(print(parse(print(schedule), "ahead")), print(schedule));
  }
  EXPECT_EQ(count(multiply(run_pipeline(sums(0, 0))).agents[1].body, OpCode::kLoad), 2);
}

// Who computes reads nothing that others write, and the caller alone sees what is stored.
TEST(LoadAhead, TheLoaderAloneWaits) {
  for (int store_slots : {0, 2}) {
    Program schedule = run_pipeline(sums(2, store_slots));
    for (const Agent& agent : multiply(schedule).agents) {
      EXPECT_EQ(count(agent.body, OpCode::kWait), agent.kind == AgentKind::kProducer ? 1 : 0)
          << print(schedule);
    }
  }
}

TEST(LoadAhead, TheSameBitsAsWithout) {
  std::uint64_t seed = test_seed();
  SCOPED_TRACE("STRETTO_TEST_SEED=" + std::to_string(seed));
  std::mt19937_64 random(seed);
  auto numbers = [&](std::int64_t n) {
    Doubles v(static_cast<std::size_t>(n));
    for (double& e : v) e = static_cast<double>(random() % 2001) / 1000 - 1;
    return v;
  };
  Doubles a = numbers(kRows * kK), b = numbers(kCols * kK), x = numbers(kRows * kCols);
  auto run = [&](int load_slots, int store_slots) {
    auto program = std::make_shared<const Program>(run_pipeline(sums(load_slots, store_slots)));
    std::vector<Doubles> c(kWorld);
    World world({.size = kWorld});
    run_program(world, program, [&](Rank& rank, Instance& instance, RankArguments& arguments) {
      arguments.set("a", a);
      arguments.set("b", b);
      arguments.set("x", x);
      for (int e = 0; e < 3; ++e) instance.launch(arguments.args, arguments.extents);
      c[static_cast<std::size_t>(rank.index())] = arguments.get("c");
    });
    return c;
  };
  std::vector<Doubles> without = run(0, 0);
  for (std::int64_t i = 0; i < kRows; ++i) {
    for (std::int64_t j = 0; j < kCols; ++j) {
      auto at = static_cast<std::size_t>(i * kCols + j);
      double sum = x[at];
      for (std::int64_t l = 0; l < kK; ++l) {
        sum += a[static_cast<std::size_t>(i * kK + l)] * b[static_cast<std::size_t>(j * kK + l)];
      }
      ASSERT_NEAR(without[0][at], sum, 1e-4);
    }
  }
  for (int load_slots : {1, 2, 3}) {
    for (int store_slots : {0, 1, 3}) EXPECT_EQ(run(load_slots, store_slots), without);
  }
}

TEST(LoadAhead, IsProvedAndNotWithoutItsWait) {
  for (int load_slots : {1, 3}) {
    for (int store_slots : {0, 2}) {
      Program schedule = run_pipeline(sums(load_slots, store_slots));
      ProofResult proof = prove(schedule);
      EXPECT_TRUE(proof.proved()) << proof.report;
      std::erase_if(schedule.roles[1].agents[0].body,
                    [](const Op& op) { return op.code == OpCode::kWait; });
      EXPECT_TRUE(prove(schedule).rejected());
    }
  }
}

}  // namespace
}  // namespace stretto::load_ahead_test
