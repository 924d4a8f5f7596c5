// Where the proof looks. If these fail, a program is called proved at sizes that nobody looked at.
#include "stretto/proof/sample.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <set>
#include <vector>

#include "stretto/base/errors.h"
#include "stretto/lang/program_builder.h"
#include "stretto/passes/pipeline.h"
#include "stretto/proof/prove.h"
#include "stretto/proof/size_boundaries.h"

namespace stretto::sample_test {
namespace {

constexpr int kWorld = 3, kTileRows = 8;

// Every rank copies its share of m rows in tiles; `gap` leaves out row `gap` - 1 at m = gap.
Program share(std::int64_t bound, std::int64_t gap = -1) {
  ProgramBuilder p("share", kWorld);
  Index m = p.extent("m", bound);
  Index rows = ceil_div(m, kWorld);
  auto in = p.input("in", DType::kF32, {rows, 4});
  auto out = p.output("out", DType::kF32, {rows, 4});
  p.role("copy", Resource::sms(2), p.grid(out, kTileRows, 4), [&](const Tile& t) {
    Index end = select(m == gap, rows - 1, rows);
    p.store(out.tile({t.row, 0}, kTileRows, 4).until_row(end),
            p.load(in.tile({t.row, 0}, kTileRows, 4)));
  });
  return run_pipeline(p.finish());
}

std::set<std::int64_t> first_values(const Samples& samples) {
  std::set<std::int64_t> values;
  for (const auto& v : samples) values.insert(v[0]);
  return values;
}

TEST(SampleExtents, AllVectorsOfSizesWhereTheyFit) {
  ProgramBuilder p("two", 1);
  Index m = p.extent("m", 20), past = p.extent("past", 30);
  auto out = p.output("out", DType::kF32, {m, past});
  p.role("fill", Resource::sms(1), p.grid(out, 4, 4), [&](const Tile& t) {
    p.store(out.tile({t.row, t.col}, 4, 4), p.zeros(DType::kF32, 4, 4));
  });
  Program program = run_pipeline(p.finish());
  std::optional<Samples> all = all_extents(program, 21 * 31);
  ASSERT_TRUE(all);
  EXPECT_EQ((*all)[0], (std::vector<std::int64_t>{20, 30})) << "the bounds come first";
  EXPECT_EQ(std::set(all->begin(), all->end()).size(), 21u * 31u);
  EXPECT_FALSE(all_extents(program, 21 * 31 - 1));
}

TEST(SampleExtents, EveryTileAndRankBoundaryWhereTheyFit) {
  constexpr std::int64_t kBound = 100;
  std::set<std::int64_t> values = first_values(sample_extents(share(kBound), 101));
  for (std::int64_t step : {std::int64_t{kWorld}, std::int64_t{kTileRows}, kBound / kWorld + 1}) {
    for (std::int64_t b = step; b <= kBound; b += step) {
      for (std::int64_t v : {b - 1, b, b + 1}) EXPECT_EQ(values.count(v), v <= kBound) << v;
    }
  }
}

TEST(SampleExtents, ThinsLargeBounds) {
  Samples samples = sample_extents(share(10'000), 72);
  EXPECT_LE(samples.size(), 72u);
  for (std::int64_t v : {0, 1, kTileRows - 1, kTileRows, kTileRows + 1, 9'999, 10'000}) {
    EXPECT_EQ(first_values(samples).count(v), 1u) << v;
  }
}

// A user would take a program for right at sizes that nobody looked at.
TEST(SampleExtents, WhereNotAllSizesAreLookedAtTheProofIsNotComplete) {
  ProofResult few = prove(share(10'000), {.max_enumerated = 1'000, .partition = false});
  EXPECT_EQ(few.verdict, Verdict::kNotComplete) << few.report;
  ASSERT_EQ(few.missing.size(), 1u);
  EXPECT_EQ(few.missing[0].what, "sizes");
  ProofResult bounds = prove(share(10'000), {.bounds_only = true});
  EXPECT_EQ(bounds.verdict, Verdict::kProvedAtFixedSizes) << bounds.report;
  EXPECT_EQ(prove(share(100)).verdict, Verdict::kProved);
}

// Storage is for the sizes at their bounds: what a smaller size had more of would lie behind it.
TEST(SampleExtents, ATensorIsLargestAtTheBounds) {
  for (std::int64_t bound : {60, 130}) {
    ProgramBuilder p("grows", 1);
    Index m = p.extent("m", bound);
    auto out = p.output("out", DType::kF32, {m % 50, 4});
    p.role("fill", Resource::sms(1), p.range(1), [&](const Tile&) {
      p.store(out.tile({0, 0}, 64, 4), p.zeros(DType::kF32, 64, 4));
    });
    ProofResult result = prove(run_pipeline(p.finish()));
    EXPECT_TRUE(result.rejected()) << result.report;
    EXPECT_NE(result.report.find("storage"), std::string::npos) << result.report;
  }
}

// Of launches with the bounds and a few other sizes, all of these are looked at and no others.
TEST(SampleExtents, SizesBesideTheBoundsAreLookedAt) {
  for (int hole : {0, 17, 40, 99}) {
    ProgramBuilder p("holed", 1);
    Index m = p.extent("m", 100);
    auto out = p.output("out", DType::kF32, {100, 4});
    p.role("fill", Resource::sms(1), p.range(1), [&](const Tile&) {
      Index end = select(m == hole, 99, 100);
      p.store(out.tile({0, 0}, 100, 4).until_row(end), p.zeros(DType::kF32, 100, 4));
    });
    Program program = run_pipeline(p.finish());
    for (const Samples& also : {Samples{}, Samples{{17}}, Samples{{40}, {17}}}) {
      ProofResult result = prove(program, {.bounds_only = true, .also_at = also});
      bool looked_at = std::ranges::count(also, Samples::value_type{hole}) > 0;
      EXPECT_EQ(result.rejected(), looked_at) << hole << ": " << result.report;
      EXPECT_TRUE(looked_at || result.verdict == Verdict::kProvedAtFixedSizes) << result.report;
    }
    EXPECT_THROW(prove(program, {.bounds_only = true, .also_at = {{101}}}), UserError);
    EXPECT_THROW(prove(program, {.bounds_only = true, .also_at = {{-1}}}), UserError);
    EXPECT_THROW(prove(program, {.bounds_only = true, .also_at = {{1, 1}}}), UserError);
  }
}

// Both sizes matter, and only together.
TEST(SampleExtents, AHoleAtOnePairOfSizesIsFound) {
  for (bool hole : {false, true}) {
    ProgramBuilder p("pair", 1);
    Index m = p.extent("m", 60), n = p.extent("n", 60);
    auto out = p.output("out", DType::kF32, {64, 4});
    p.role("fill", Resource::sms(1), p.range(1), [&](const Tile&) {
      Index end = hole ? select(m == 37 && n == 41, 63, 64) : Index(64);
      p.store(out.tile({0, 0}, 64, 4).until_row(end), p.zeros(DType::kF32, 64, 4));
    });
    ProofResult result = prove(run_pipeline(p.finish()));
    EXPECT_EQ(result.verdict, hole ? Verdict::kRejected : Verdict::kProved) << result.report;
  }
}

// A hole at one size only, wherever it is: whoever runs that size would read garbage.
TEST(SampleExtents, AHoleAtAnySizeIsFound) {
  EXPECT_TRUE(prove(share(64)).proved());
  for (std::int64_t gap = 1; gap <= 64; ++gap) {
    ProofResult result = prove(share(64, gap));
    EXPECT_TRUE(result.rejected()) << "m = " << gap;
  }
}

// Both ranks read each other's input, but where `skips` says so without waiting for it.
Program reads_early(const std::function<Index(ProgramBuilder&, const Index&)>& skips) {
  ProgramBuilder p("early", 2);
  Index m = p.extent("m", 1000);
  auto in = p.input("in", DType::kF32, {1, 512}, Space::kSymmetric);
  auto out = p.output("out", DType::kF32, {1, 512});
  auto ready = p.signal("ready"), done = p.signal("done");
  Index peer = 1 - p.rank();
  p.on_start([&] { p.notify(ready, peer); });
  p.role("r", Resource::sms(1), p.range(1), [&](const Tile&) {
    p.when(!skips(p, m), [&] { p.wait(ready, peer); });
    p.store(out.tile({0, 0}, 1, 512), p.load(in.on(peer).tile({0, 0}, 1, 512)));
    p.notify(done, peer);
  });
  p.on_end([&] { p.wait(done, peer); });
  return p.finish();
}

// Sizes that are no multiples of anything, but that the program itself names.
TEST(SampleExtents, WhatSizesAreComparedWithIsABoundary) {
  using Skips = std::function<Index(ProgramBuilder&, const Index&)>;
  ProofResult right = prove(reads_early([](ProgramBuilder&, const Index& m) { return m < 0; }));
  EXPECT_TRUE(right.proved()) << right.report;
  for (const Skips& skips : std::vector<Skips>{
           [](ProgramBuilder&, const Index&m) { return m >= 300 && m < 400; },
           [](ProgramBuilder&, const Index&m) { return m == 77; },
           [](ProgramBuilder&, const Index&m) { return 3 * m - 5 == 400; },
           [](ProgramBuilder&, const Index&m) { return ceil_div(m, 7) == 11 + 0 * m; },
           [](ProgramBuilder&p, const Index&m) { return p.let("half", m / 2) == 117; },
           [](ProgramBuilder&p, const Index&m) { return m + p.rank() == 501; },
           [](ProgramBuilder&, const Index&m) { return m * m == 441; },
       }) {
    EXPECT_TRUE(prove(reads_early(skips)).rejected());
  }
}

// Ranks that are counted round the world say nothing of sizes.
TEST(SampleExtents, StepsAreOfSizesAndTiles) {
  ProgramBuilder p("ring", 7);
  Index m = p.extent("m", 1000);
  auto in = p.input("in", DType::kF32, {m, 4});
  auto out = p.output("out", DType::kF32, {m, 4});
  auto sent = p.signal("sent");
  p.role("copy", Resource::sms(1), p.grid(out, 8, 4), [&](const Tile& t) {
    p.store(out.tile({t.row, 0}, 8, 4), p.load(in.tile({t.row, 0}, 8, 4)));
  });
  p.on_end([&] {
    p.notify(sent, (p.rank() + 1) % 7);
    p.loop(7, [&](const Index& i) { p.notify(sent, (p.rank() + i) % 7); });
    p.when((m + 5) % 11 == 0, [&] { p.wait(sent, p.rank()); });
  });
  std::set<std::int64_t> steps = size_steps(run_pipeline(p.finish()));
  EXPECT_EQ(steps.count(7), 0u);
  EXPECT_EQ(steps.count(8), 1u) << "rows of a tile";
  EXPECT_EQ(steps.count(11), 1u);
  EXPECT_EQ(steps.count(143), 1u) << "a rank's share";
}

// Rows that go where a table says, with two workers: two of them may meet in one place. Sizes with
// fewer rows do not have the entry in which they were seen to.
TEST(SampleTables, EntriesThatASizeDoesNotHaveAreNotMade) {
  ProgramBuilder p("scatter", 1);
  Index m = p.extent("m", 9);
  TensorRef slots = p.table("slots", {m}, {ContractKind::kRange, -1, 24});
  TensorRef in = p.input("in", DType::kF32, {9, 4});
  TensorRef kept = p.state("kept", DType::kF32, {24, 4});
  p.role("write", Resource::sms(2), p.range(m), [&](const Tile& t) {
    Index slot = p.let("slot", p.read(slots, {t.index}));
    p.when(slot >= 0, [&] {
      p.store(kept.tile({slot, 0}, 1, 4), p.load(in.tile({t.index, 0}, 1, 4)));
    });
  });
  Program program = run_pipeline(p.finish());
  EXPECT_TRUE(prove(program).rejected());
  int table = program.find_tensor("slots");
  RankChoice far{0, {{.table = table, .entry = {8}, .value = 3}}};
  EXPECT_EQ(table_with(program, {2}, {far}, false), nullptr);
  auto made = table_with(program, {9}, {far}, false);
  ASSERT_NE(made, nullptr);
  EXPECT_EQ(made->value(0, table, std::vector<std::int64_t>{8}), 3);
}

}  // namespace
}  // namespace stretto::sample_test
