// Programs whose synchronisation follows a run-time table: a table-driven tile map that says which
// rows a tile has, on which rank they are and which group's weights they are multiplied by. If
// these fail, routing as in a mixture of experts either cannot be launched or corrupts memory for
// some routing.
#include <gtest/gtest.h>

#include <algorithm>

#include "stretto/ir/parser.h"
#include "stretto/lang/program_builder.h"
#include "stretto/passes/pipeline.h"
#include "stretto/proof/expand.h"
#include "stretto/proof/prove.h"
#include "stretto/proof/sample.h"

namespace stretto::table_test {
namespace {

constexpr int kWorld = 2;
constexpr std::int64_t kTiles = 4, kGroups = 3, kRows = 9, kCols = 4;

struct Routing {
  Contract channel{ContractKind::kRange, 0, kGroups};
  Contract rank{ContractKind::kRange, 0, kWorld};
  bool wait_for_rows = true;
  bool wait_for_group = true;
  bool notify_empty_tiles = true;
  bool tell_everybody = true;  // false: only the owner hears that its rows have been read
  bool one_table = false;      // low and high are one partition
};

// out[m, 4] = rows[m, 4] + bias[group of the row], where the rows of a tile come from its rank.
Program routed(const Routing& o) {
  ProgramBuilder p("routed", kWorld);
  Index m = p.extent("m", kRows);
  auto in = p.input("in", DType::kF32, {m, kCols}, Space::kSymmetric);
  auto bias = p.input("bias", DType::kF32, {kGroups, kCols});
  auto full = p.buffer("full", DType::kF32, {m, kCols});
  auto group_bias = p.buffer("group_bias", DType::kF32, {kGroups, kCols});
  auto out = p.output("out", DType::kF32, {m, kCols});
  Contract bound{ContractKind::kAscending, 0, m + 1};
  auto offsets = o.one_table ? p.table("low", {kTiles + 1}, {ContractKind::kPartition, 0, m + 1})
                             : p.table("low", {kTiles}, bound);
  TableMapOptions tables{
      .num_tiles = kTiles,
      .num_channels = kGroups,
      .low = offsets,
      .high = o.one_table ? offsets : p.table("high", {kTiles}, bound),
      .rank = p.table("rank_of", {kTiles}, o.rank),
      .channel = p.table("group_of", {kTiles}, o.channel),
      .count = p.table("tiles_of", {kGroups}, {ContractKind::kRange, 0, kTiles + 1})};
  auto map = p.tile_map("routes", full, tables);
  auto arrived = p.signal("arrived", map.channels());
  auto group_ready = p.signal("group_ready", kGroups);
  auto ready = p.signal("ready"), done = p.signal("done");
  auto rows_of = [](const TensorRef& tensor, const Tile& t) {
    return tensor.tile({t.row, 0}, kRows, kCols).until_row(t.row_end);
  };

  p.on_start([&] { p.notify_all(ready); });
  p.role("gather", Resource::copy_engine(), map.tiles(), [&](const Tile& t) {
    p.wait(ready, t.owner);
    p.rank_copy_data(rows_of(in, t).on(t.owner), rows_of(full, t));
    if (o.notify_empty_tiles) {
      p.producer_tile_notify(arrived, map, t, NotifyMode::kLocal);
    } else {
      p.when(t.row < t.row_end,
             [&] { p.producer_tile_notify(arrived, map, t, NotifyMode::kLocal); });
    }
    o.tell_everybody ? p.notify_all(done) : p.notify(done, t.owner);
  });
  p.role("load_bias", Resource::sms(1), p.range(kGroups), [&](const Tile& t) {
    p.store(group_bias.tile({t.index, 0}, 1, kCols), p.load(bias.tile({t.index, 0}, 1, kCols)));
    p.notify(group_ready[t.index], p.rank());
  });
  p.role("add", Resource::sms(2), map.tiles(), [&](const Tile& t) {
    if (o.wait_for_rows) p.consumer_tile_wait(arrived, map, t.row, t.row_end);
    Index group = p.let("group", p.read(tables.channel, {t.index}));
    if (o.wait_for_group) p.wait(group_ready[group]);
    p.store(rows_of(out, t),
            p.load(rows_of(full, t)) + p.load(group_bias.tile({group, 0}, 1, kCols)));
  });
  p.on_end([&] { p.loop(kWorld, [&](const Index& r) { p.wait(done[r], kTiles); }); });
  return run_pipeline(p.finish());
}

void expect_rejected(const Program& program, FindingKind kind, const std::string& words) {
  ProofResult r = prove(program);
  ASSERT_TRUE(r.rejected()) << "accepted a broken program";
  EXPECT_EQ(r.findings[0].kind, kind) << r.report;
  EXPECT_NE(r.report.find(words), std::string::npos) << r.report;
}

void expect_rejected(const Routing& routing, FindingKind kind, const std::string& words) {
  expect_rejected(routed(routing), kind, words);
}

TEST(Tables, ACorrectRoutedProgramIsProvedUnderEveryWitness) {
  Program program = routed({});
  auto witnesses = sample_tables(program, {kRows});
  ASSERT_GE(witnesses.size(), 6u);
  ProofResult r = prove(program);
  EXPECT_EQ(r.verdict, Verdict::kNotComplete) << r.report;
  ASSERT_EQ(r.missing.size(), 1u) << r.report;
  EXPECT_EQ(r.missing[0].what, "tables");
  // Each of the sizes 0..m under each witness.
  EXPECT_GE(r.stats.cases, static_cast<int>(witnesses.size()) * (kRows + 1)) << r.report;
}

// Rows, rank and group of a tile all by table.
TEST(Tables, RoutingByOnePartitionIsProvedForEveryTable) {
  ProofResult r = prove(routed({.one_table = true}));
  EXPECT_TRUE(r.proved()) << r.report;
  EXPECT_TRUE(r.stats.every_table) << r.stats.sampled_because;
  for (Routing broken : {Routing{.wait_for_rows = false}, Routing{.wait_for_group = false},
                         Routing{.notify_empty_tiles = false}, Routing{.tell_everybody = false}}) {
    broken.one_table = true;
    EXPECT_TRUE(prove(routed(broken)).rejected());
  }
}

// Witnesses have to differ in what matters, or the test above says little.
TEST(Tables, WitnessesRouteDifferently) {
  Program program = routed({});
  std::vector<std::vector<std::int64_t>> seen;
  for (const auto& witness : sample_tables(program, {kRows})) {
    std::vector<std::int64_t> routing;
    for (const char* table : {"low", "high", "rank_of", "group_of"}) {
      for (std::int64_t t = 0; t < kTiles; ++t) {
        routing.push_back(witness->value(1, program.find_tensor(table), std::vector{t}));
      }
    }
    EXPECT_EQ(std::count(seen.begin(), seen.end(), routing), 0) << witness->name();
    seen.push_back(routing);
  }
}

TEST(Tables, RejectsAChannelTableThatMayNameAGroupThatIsNotThere) {
  expect_rejected({.channel = {ContractKind::kRange, 0, kGroups + 1}}, FindingKind::kIllFormed,
                  "channel 3 of 'group_ready' does not exist");
  expect_rejected({.channel = {ContractKind::kRange, -1, kGroups}}, FindingKind::kIllFormed,
                  "channel -1 of 'group_ready'");
}

TEST(Tables, RejectsARankTableThatMayNameARankThatIsNotThere) {
  expect_rejected({.rank = {ContractKind::kRange, 0, kWorld + 1}}, FindingKind::kIllFormed,
                  "of 'ready' does not exist, there are");
}

TEST(Tables, RejectsATableWithoutAContract) {
  Program program = routed({});
  auto channel = static_cast<std::size_t>(program.find_tensor("group_of"));
  program.tensors[channel].contract = {};
  ProofResult r = prove(program);
  ASSERT_TRUE(r.rejected());
  EXPECT_NE(r.report.find("contract"), std::string::npos) << r.report;
}

TEST(Tables, RejectsMissingWaits) {
  expect_rejected({.wait_for_rows = false}, FindingKind::kRace, "'full'");
  expect_rejected({.wait_for_group = false}, FindingKind::kRace, "'group_bias'");
}

// Slots are reused by every launch: a wait that some table leaves out must not be what
// keeps a rank from running ahead.
TEST(Tables, RejectsRunAheadWhereATableLeavesOutTheWait) {
  auto exchange = [](bool always) {
    ProgramBuilder p("exchange", 2);
    auto use = p.table("use", {1}, {ContractKind::kRange, 0, 2});
    auto in = p.input("in", DType::kF32, {4, 4});
    auto inbox =
        p.buffer("inbox", DType::kF32, {4, 4}, {.space = Space::kSymmetric, .num_slots = 2});
    auto out = p.output("out", DType::kF32, {4, 4});
    auto sent = p.signal("sent", 1);
    p.role("push", Resource::sms(1), p.range(1), [&](const Tile&) {
      p.store(inbox.on(1 - p.rank()).tile({0, 0}, 4, 4), p.load(in.tile({0, 0}, 4, 4)));
      p.notify(sent[0], 1 - p.rank());
    });
    p.role("take", Resource::sms(1), p.range(1), [&](const Tile&) {
      Index wanted = p.let("wanted", p.read(use, {0}));
      if (always) p.wait(sent[0]);
      p.when(
          wanted == 1,
          [&] {
            if (!always) p.wait(sent[0]);
            p.store(out.tile({0, 0}, 4, 4), p.load(inbox.tile({0, 0}, 4, 4)));
          },
          [&] {
            p.store(out.tile({0, 0}, 4, 4), p.load(in.tile({0, 0}, 4, 4)));
          });
    });
    return run_pipeline(p.finish());
  };
  EXPECT_FALSE(prove(exchange(true)).rejected()) << prove(exchange(true)).report;
  EXPECT_TRUE(prove(exchange(false)).rejected());
}

// How often a counter is notified must not depend on the table: the next launch would wait for what
// never comes.
TEST(Tables, RejectsQuotasThatDependOnTheTable) {
  expect_rejected({.notify_empty_tiles = false}, FindingKind::kQuota,
                  "every launch must add the same");
  expect_rejected({.tell_everybody = false}, FindingKind::kQuota, "'done'");
}

// Rank r stores row `row` of its input, which goes by a table 't' of 4 entries from 0 to 7.
Program stores_row(const std::string& row) {
  return parse(R"(
program "row" world 2 level schedule {
  rank %rank
  tile %tile
  let %row
  input @t : i32[4] contract range 0, 8
  input @in : f32[8, 8]
  output @out : f32[1, 8]
  on_start on_start body {
  }
  role r sms 1 tiles %tile < 1 {
    agent body body {
      values $0: f32[1, 8]
      let %row = )" +
                   row + R"(
      $0 = load @in[%row, 0] tile [1, 8]
      store $0 to @out[0, 0] tile [1, 8]
    }
  }
  on_end on_end body {
  }
}
)",
               "row.ir", MissingLocs::kFill);
}

// Of a choice that no table makes, and of conditions, what is read has to be there: a launch would
// stop with a fault. Both sides of && and || are evaluated.
TEST(Tables, EntriesThatAreReadForCertainHaveToBeThere) {
  for (const char* row : {"select(0 <= %rank, @t[3], @t[1000])", "select(%rank < 0, @t[1000], 0)",
                          "select(@t[0] < 4, 3, @t[2])", "min(@t[3], 7)"}) {
    ProofResult r = prove(stores_row(row));
    EXPECT_TRUE(r.proved()) << row << ": " << r.report;
  }
  ProofResult by_table = prove(stores_row("select(@t[0] < 4, @t[1000], 0)"));
  EXPECT_EQ(by_table.verdict, Verdict::kNotComplete) << by_table.report;
  for (const char* row :
       {"select(0 <= %rank, @t[1000], 0)", "select(%rank < 1, @t[%rank], @t[1000])",
        "select(@t[1000] < 4, 0, 1)", "select(0 < @t[0] && @t[1000] < 4, 0, 1)",
        "select(%rank < 2 || @t[1000] < 4, 0, 1)"}) {
    ProofResult r = prove(stores_row(row));
    ASSERT_TRUE(r.rejected()) << "accepted " << row;
    EXPECT_NE(r.report.find("index 1000 of dimension 0 of table 't' does not exist"),
              std::string::npos)
        << r.report;
  }
}

// Every rank sends a row to each other, in the order of a permutation of its own. Tables that were
// looked at are right, but no launch would be made: what it adds to counters is not known.
TEST(Tables, RefusesWhatNoLaunchTakesBecauseATableDecidesWhoIsNotified) {
  ProgramBuilder p("permuted_peers", kWorld);
  auto x = p.input("x", DType::kF32, {1, kCols});
  auto order = p.table("order", {kWorld}, {ContractKind::kPermutation, 0, kWorld});
  auto inbox = p.buffer("inbox", DType::kF32, {kWorld, kCols}, {.space = Space::kSymmetric});
  auto y = p.output("y", DType::kF32, {kWorld, kCols});
  auto ready = p.signal("ready"), sent = p.signal("sent");
  p.on_start([&] { p.notify_all(ready); });
  p.role("send", Resource::sms(1), p.range(kWorld), [&](const Tile& t) {
    Index peer = p.read(order, {t.index});
    p.wait(ready, peer);
    p.store(inbox.on(peer).tile({p.rank(), 0}, 1, kCols), p.load(x.tile({0, 0}, 1, kCols)));
    p.notify(sent, peer);
  });
  p.role("take", Resource::sms(1), p.range(kWorld), [&](const Tile& t) {
    p.wait(sent, t.index);
    p.store(y.tile({t.index, 0}, 1, kCols), p.load(inbox.tile({t.index, 0}, 1, kCols)));
  });
  ProofResult r = prove(run_pipeline(p.finish()));
  ASSERT_TRUE(r.rejected()) << "proved what no launch takes";
  EXPECT_EQ(r.findings[0].kind, FindingKind::kQuota) << r.report;
  EXPECT_NE(r.report.find("a notify depends on a table"), std::string::npos) << r.report;
}

// Rows that are written as far as an entry says and read as far as entry `read` does.
Program as_far(int read) {
  ProgramBuilder p("as_far", 1);
  auto far = p.table("far", {2}, {ContractKind::kRange, 0, kRows + 1});
  auto x = p.input("x", DType::kF32, {kRows, kCols});
  auto kept = p.buffer("kept", DType::kF32, {kRows, kCols});
  auto y = p.output("y", DType::kF32, {kRows, kCols});
  auto written = p.signal("written");
  p.role("write", Resource::sms(1), p.range(1), [&](const Tile&) {
    p.loop(p.read(far, {0}), [&](const Index& i) {
      p.store(kept.tile({i, 0}, 1, kCols), p.load(x.tile({i, 0}, 1, kCols)));
    });
    p.notify(written[0], 0);
  });
  p.role("read", Resource::sms(1), p.range(1), [&](const Tile&) {
    Index end = p.read(far, {read});
    p.wait(written[0], 1);
    p.store(y.tile({0, 0}, kRows, kCols), p.load(kept.tile({0, 0}, kRows, kCols).until_row(end)));
  });
  return run_pipeline(p.finish());
}

// Of two entries a table shows what is wrong. Of one there is no such table, and the report says
// what was not shown.
TEST(Tables, AReportSaysForWhichTablesOrWhichWritesDoNotCount) {
  expect_rejected(as_far(1), FindingKind::kUncovered, "with tables");
  ProofResult r = prove(as_far(0));
  EXPECT_EQ(r.verdict, Verdict::kNotComplete) << r.report;
  EXPECT_NE(r.report.find("in this launch; writes that a table decides do not count"),
            std::string::npos)
      << r.report;
}

}  // namespace
}  // namespace stretto::table_test
