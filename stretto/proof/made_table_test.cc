// Programs that make tables for themselves: which experts tiles have, which rank's rows they read
// and how many there are is known once a role has stored it. If these fail, routing inside of a
// launch either cannot be written, or reads tables that are not there yet.
#include <gtest/gtest.h>

#include <string>

#include "stretto/lang/program_builder.h"
#include "stretto/passes/pipeline.h"
#include "stretto/proof/prove.h"

namespace stretto::made_table_test {
namespace {

constexpr int kWorld = 2;
constexpr std::int64_t kTiles = 3, kExperts = 2, kRows = 4, kCols = 8;

struct Made {
  int num_stages = 2;
  bool waits_for_tables = true;
  bool waits_for_source = true;
  bool stores_all = true;     // false: not who the tile's expert is
  bool stores_twice = false;  // by another role
  bool adds = false;
  bool tells_source = false;   // notifies by an entry
  std::int64_t most = kTiles;  // that `used` may say
};

// out[tile] = rows of the tile's source, as `rows` picks them, times its expert's weights.
Program routed(const Made& o) {
  ProgramBuilder p("routed", kWorld);
  auto ids = p.input("ids", DType::kI32, {kTiles, 1});
  auto x = p.state("x", DType::kF32, {kWorld, kRows, kCols}, Space::kSymmetric);
  auto w = p.input("w", DType::kF32, {kExperts, kCols, kCols});
  auto out = p.output("out", DType::kF32, {kTiles * kRows, kCols});
  auto used = p.made_table("used", {1}, {ContractKind::kRange, 0, o.most + 1});
  auto expert_of = p.made_table("expert_of", {kTiles, 1}, {ContractKind::kRange, 0, kExperts});
  auto source_of = p.made_table("source_of", {kTiles, 1}, {ContractKind::kRange, 0, kWorld});
  auto rows = p.buffer("rows", DType::kI32, {kTiles * kRows, 1});
  auto made = p.signal("made", 1), arrived = p.signal("arrived", kWorld);
  auto ready = p.signal("ready"), heard = p.signal("heard", kWorld);

  p.on_start([&] { p.notify_all(ready); });
  p.role("send", Resource::copy_engine(), p.range(1), [&](const Tile&) {
    Index peer = (p.rank() + 1) % kWorld;
    p.wait(ready, peer);
    auto own = x.tile({p.rank(), 0, 0}, kRows, kCols);
    p.put_signal(own.on(peer), own, arrived[p.rank()], peer);
    p.notify(arrived[p.rank()], p.rank());
  });
  p.role("make", Resource::sms(1), p.range(1), [&](const Tile&) {
    Value id = p.load(ids.tile({0, 0}, kTiles, 1));
    if (o.stores_all) p.store(expert_of.tile({0, 0}, kTiles, 1), id);
    o.adds ? p.reduce_store(source_of.tile({0, 0}, kTiles, 1), id)
           : p.store(source_of.tile({0, 0}, kTiles, 1), id);
    p.store(used.tile({0}, 1, 1), col_sum(id));
    p.store(rows.tile({0, 0}, kTiles * kRows, 1), p.iota_rows(0, kTiles * kRows));
    p.notify(made[0], p.rank());
  });
  if (o.stores_twice) {
    p.role("again", Resource::sms(1), p.range(1), [&](const Tile&) {
      p.wait(made[0]);
      p.store(used.tile({0}, 1, 1), p.zeros(DType::kI32, 1, 1));
    });
  }
  p.role("multiply", Resource::sms(2).pipelined(o.num_stages), p.range(kTiles), [&](const Tile& t) {
    if (o.waits_for_tables) p.wait(made[0]);
    Index count = p.read(used, {0}), expert = p.read(expert_of, {t.index, 0});
    Index source = p.read(source_of, {t.index, 0});
    Value sum = p.zeros(DType::kF32, kRows, kCols);
    p.when(t.index < count, [&] {
      if (o.waits_for_source) p.wait(arrived[source]);
      Value picked = p.load(rows.tile({t.index * kRows, 0}, kRows, 1));
      p.loop(2, [&](const Index& i) {
        Index k = i * (kCols / 2);
        Value a = p.load_rows(x.tile({source, 0, k}, kRows, kCols / 2), picked);
        sum = dot(sum, a, p.load(w.tile({expert, 0, k}, kCols, kCols / 2)).T());
      });
    });
    p.store(out.tile({t.index * kRows, 0}, kRows, kCols), sum);
    if (o.tells_source) p.notify(heard[source], p.rank());
  });
  p.on_end([&] { p.loop(kWorld, [&](const Index& from) { p.wait(arrived[from]); }); });
  return run_pipeline(p.finish());
}

TEST(MadeTables, RolesThatGoByATableOfTheLaunchAreProvedForEveryTable) {
  for (int stages : {0, 2}) {
    Program program = routed({.num_stages = stages});
    EXPECT_EQ(program.roles.back().agents.size(), stages > 0 ? 2u : 1u);
    ProofResult r = prove(program);
    EXPECT_TRUE(r.proved()) << r.report;
    EXPECT_TRUE(r.stats.every_table) << r.stats.sampled_because;
  }
}

// An operator of thousands of tiles would not be proved in time.
TEST(MadeTables, HowManyValuesAnEntryOfConditionsHasIsNoMatter) {
  ProofResult few = prove(routed({})), many = prove(routed({.most = 100'000}));
  EXPECT_TRUE(many.proved()) << many.report;
  EXPECT_TRUE(many.stats.every_table) << many.stats.sampled_because;
  EXPECT_EQ(many.stats.events, few.stats.events);
}

void expect_refused(const Made& made, FindingKind kind, const std::string& words) {
  ProofResult r = prove(routed(made));
  ASSERT_TRUE(r.rejected()) << words << "\n" << r.report;
  EXPECT_EQ(r.findings[0].kind, kind) << r.report;
  EXPECT_NE(r.report.find(words), std::string::npos) << words << "\n" << r.report;
}

TEST(MadeTables, WhatWouldReadOtherEntriesThanWereStoredIsRefused) {
  for (int stages : {0, 2}) {
    expect_refused({.num_stages = stages, .waits_for_tables = false}, FindingKind::kRace, "'used'");
    expect_refused({.num_stages = stages, .waits_for_source = false}, FindingKind::kRace, "'x'");
    expect_refused({.num_stages = stages, .stores_all = false}, FindingKind::kUncovered,
                   "'expert_of'");
  }
  expect_refused({.waits_for_source = false, .most = 100'000}, FindingKind::kRace, "'x'");
  expect_refused({.stores_twice = true}, FindingKind::kOutput, "table 'used' [0:1] on rank 0");
  expect_refused({.adds = true}, FindingKind::kIllFormed, "'source_of' is added to");
}

// Nobody is notified by such an entry, as by those of tables that are inputs.
TEST(MadeTables, ANotifyByAnEntryIsRefused) {
  ProofResult r = prove(routed({.tells_source = true}));
  EXPECT_TRUE(r.rejected()) << r.report;
}

}  // namespace
}  // namespace stretto::made_table_test
