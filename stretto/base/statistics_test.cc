// If these fail, figures and verdicts of every measurement are off: of benchmarks, of the chooser,
// of calibration.
#include "stretto/base/statistics.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <random>

#include "stretto/base/test_errors.h"
#include "stretto/base/test_seed.h"

namespace stretto {
namespace {

double uniform(std::mt19937_64& bits) { return static_cast<double>(bits() >> 11) * 0x1p-53; }

TEST(Median, IsTheMiddleOneOrTheMeanOfTheMiddleTwo) {
  EXPECT_EQ(median({3}), 3);
  EXPECT_EQ(median({4, 1}), 2.5);
  EXPECT_EQ(median({9, 1, 2}), 2);
  EXPECT_EQ(median({4, 1, 100, 2}), 3);
  EXPECT_THROW(median({}), InternalError);
}

TEST(Median, HasAsManySamplesAboveAsBelowAndTurnsRoundWithThem) {
  std::mt19937_64 bits(test_seed());
  for (int trial = 0; trial < 500; ++trial) {
    SCOPED_TRACE("STRETTO_TEST_SEED=" + std::to_string(test_seed()) + " trial " +
                 std::to_string(trial));
    std::vector<double> samples(1 + bits() % 60), turned;
    for (double& s : samples) s = static_cast<double>(bits() % 20);
    for (double s : samples) turned.push_back(-s);
    const double m = median(samples);
    auto below = std::ranges::count_if(samples, [&](double s) { return s < m; });
    auto above = std::ranges::count_if(samples, [&](double s) { return s > m; });
    EXPECT_LE(2 * std::max(below, above), std::ssize(samples));
    EXPECT_EQ(median(turned), -m) << "the upper middle of one is the lower middle of the other";
    MedianInterval of = median_interval(samples), other = median_interval(turned);
    EXPECT_EQ(of.median, m);
    EXPECT_EQ(of.low, -other.high);
    EXPECT_EQ(of.high, -other.low);
    EXPECT_LE(of.low, m);
    EXPECT_LE(m, of.high);
  }
}

TEST(Quantile, IsLinearBetweenNeighbours) {
  EXPECT_DOUBLE_EQ(quantile({1, 2, 3, 4, 5}, 0.9), 4.6);
  EXPECT_DOUBLE_EQ(quantile({1, 2}, 0.1), 1.1);
  EXPECT_EQ(quantile({7, 5}, 0), 5);
  EXPECT_EQ(quantile({7, 5}, 1), 7);
}

// Tables of the sign test give these.
TEST(IntervalRank, IsTheOneOfTheBinomialDistribution) {
  const std::map<std::size_t, std::size_t> of_tables = {
      {1, 1},  {5, 1},  {6, 1},  {8, 1},   {9, 2},   {10, 2},  {12, 3},  {15, 4},
      {17, 5}, {20, 6}, {25, 8}, {40, 14}, {50, 18}, {60, 22}, {100, 40}};
  for (auto [count, rank] : of_tables) EXPECT_EQ(interval_rank(count), rank) << count;
}

TEST(MedianInterval, HoldsTheMedianOfTheDistributionNineteenTimesInTwentyAndMore) {
  const std::uint64_t seed = test_seed();
  std::mt19937_64 bits(seed);
  constexpr int kTrials = 4000;
  for (std::size_t count : {6U, 7U, 9U, 15U, 20U, 40U, 60U, 200U}) {
    SCOPED_TRACE("STRETTO_TEST_SEED=" + std::to_string(seed) + " samples " + std::to_string(count));
    int held = 0, narrower = 0;
    const std::size_t next = interval_rank(count);  // one rank further in
    for (int trial = 0; trial < kTrials; ++trial) {
      std::vector<double> samples(count);
      for (double& s : samples) s = std::pow(uniform(bits), 3);  // one side longer than the other
      MedianInterval m = median_interval(samples);
      held += m.low <= 0.125 && 0.125 <= m.high;
      std::sort(samples.begin(), samples.end());
      narrower += samples[next] <= 0.125 && 0.125 <= samples[count - 1 - next];
    }
    EXPECT_GT(held, kTrials * 935 / 1000);  // four deviations below 95 %
    EXPECT_LT(narrower, kTrials * 965 / 1000) << "a narrower one would do";
  }
}

TEST(PairedRatio, IsOfPairsAndAboveOneWhereOursIsFaster) {
  // The machine slows down half-way; theirs takes twice as long all the time.
  std::vector<double> ours, theirs;
  for (int i = 0; i < 40; ++i) {
    ours.push_back(i < 20 ? 1 : 3);
    theirs.push_back(2 * ours.back());
  }
  MedianInterval ratio = paired_ratio(theirs, ours);
  EXPECT_EQ(ratio.median, 2);
  EXPECT_EQ(ratio.low, 2);
  EXPECT_EQ(ratio.high, 2);
}

}  // namespace
}  // namespace stretto
