// Where the proof looks. If these fail, a program is called proved at sizes that nobody looked at.
#include "stretto/proof/sample.h"

#include <gtest/gtest.h>

#include <set>

#include "stretto/lang/program_builder.h"
#include "stretto/passes/pipeline.h"
#include "stretto/proof/prove.h"

namespace stretto {
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

std::set<std::int64_t> first_values(const ExtentSamples& samples) {
  std::set<std::int64_t> values;
  for (const auto& v : samples.values) values.insert(v[0]);
  return values;
}

TEST(SampleExtents, SmallBoundsAreCoveredValueByValue) {
  ExtentSamples samples = sample_extents(share(64), ProofOptions{}.max_samples);
  EXPECT_TRUE(samples.complete);
  EXPECT_EQ(samples.values[0], std::vector<std::int64_t>{64}) << "the bound comes first";
  EXPECT_EQ(first_values(samples).size(), 65u);
}

TEST(SampleExtents, EveryTileAndRankBoundaryWhereTheyFit) {
  constexpr std::int64_t kBound = 100;
  ExtentSamples samples = sample_extents(share(kBound), 101);
  EXPECT_TRUE(samples.complete);
  std::set<std::int64_t> values = first_values(samples);
  for (std::int64_t step : {std::int64_t{kWorld}, std::int64_t{kTileRows}, kBound / kWorld + 1}) {
    for (std::int64_t b = step; b <= kBound; b += step) {
      for (std::int64_t v : {b - 1, b, b + 1}) EXPECT_EQ(values.count(v), v <= kBound) << v;
    }
  }
}

TEST(SampleExtents, ThinsLargeBoundsAndSaysSo) {
  ExtentSamples samples = sample_extents(share(10'000), 72);
  EXPECT_FALSE(samples.complete);
  EXPECT_LE(samples.values.size(), 72u);
  for (std::int64_t v : {0, 1, kTileRows - 1, kTileRows, kTileRows + 1, 9'999, 10'000}) {
    EXPECT_EQ(first_values(samples).count(v), 1u) << v;
  }
  ProofResult result = prove(share(10'000));
  EXPECT_TRUE(result.proved) << result.report;
  EXPECT_NE(result.report.find("thinned"), std::string::npos) << result.report;
}

TEST(SampleExtents, SeveralExtentsEachWithTheOthersAtTheirBounds) {
  ProgramBuilder p("two", 1);
  Index m = p.extent("m", 20), past = p.extent("past", 30);
  auto out = p.output("out", DType::kF32, {m, past});
  p.role("fill", Resource::sms(1), p.grid(out, 4, 4), [&](const Tile& t) {
    p.store(out.tile({t.row, t.col}, 4, 4), p.zeros(DType::kF32, 4, 4));
  });
  ExtentSamples samples = sample_extents(run_pipeline(p.finish()), 4 * 72);
  EXPECT_TRUE(samples.complete);
  std::set<std::vector<std::int64_t>> all(samples.values.begin(), samples.values.end());
  for (std::int64_t v = 0; v <= 20; ++v) EXPECT_EQ(all.count({v, 30}), 1u) << v;
  for (std::int64_t v = 0; v <= 30; ++v) EXPECT_EQ(all.count({20, v}), 1u) << v;
}

// A hole at one size only, wherever it is: whoever runs that size would read garbage.
TEST(SampleExtents, AHoleAtAnySizeIsFound) {
  EXPECT_TRUE(prove(share(64)).proved);
  for (std::int64_t gap = 1; gap <= 64; ++gap) {
    ProofResult result = prove(share(64, gap));
    EXPECT_FALSE(result.proved) << "m = " << gap;
  }
}

}  // namespace
}  // namespace stretto
