// Which tokens may be drawn and how often, by the definition that all devices share. A user who
// loses this gets another distribution than was asked for.
#include "stretto/model/choice/token_choice.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <set>

#include "stretto/base/test_seed.h"
#include "stretto/model/choice/choice_testing.h"

namespace stretto {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

Choice choose(std::vector<float> logits, const ChoiceWish& wish) {
  ChoiceScratch scratch;
  return choose_token(logits, wish, scratch);
}

TEST(ChoiceWeight, IsTheExponentialInWholeUnits) {
  EXPECT_EQ(choice_weight(0.f), kChoiceOne);
  EXPECT_EQ(choice_weight(-0.f), kChoiceOne);
  EXPECT_EQ(choice_weight(-kInfinity), 0u);
  EXPECT_EQ(choice_weight(std::numeric_limits<float>::quiet_NaN()), 0u);
  const std::uint64_t seed = test_seed();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  std::uniform_real_distribution<float> exponents(-30.f, 0.f);
  for (int i = 0; i < 100000; ++i) {
    const float x = i % 2 == 0 ? exponents(random) : exponents(random) * 1e-3f;
    const double want = std::exp(static_cast<double>(x)) * kChoiceOne;
    // Of the exponent's rounding as a float, of the series, and of the unit.
    ASSERT_NEAR(static_cast<double>(choice_weight(x)), want, want * 2.5e-6 + 1) << x;
  }
}

TEST(ChoiceKey, OrdersAsLogitsDo) {
  const std::vector<float> ascending = {-kInfinity, -3e38f, -1.f, -1e-45f, 0.f,
                                        1e-45f,     1e-3f,  2.f,  3e38f};
  for (std::size_t i = 0; i + 1 < ascending.size(); ++i) {
    EXPECT_LT(choice_key(ascending[i]), choice_key(ascending[i + 1]));
    EXPECT_EQ(choice_logit(choice_key(ascending[i])), ascending[i]);
  }
  EXPECT_EQ(choice_key(-0.f), choice_key(0.f));
  EXPECT_GT(choice_order(1.f, 3), choice_order(1.f, 4));
  EXPECT_EQ(choice_token(choice_order(1.f, 4)), 4u);
}

// The same cuts in long double, with sorts; false where a token lies so near to a cut that rounding
// may decide.
bool reference(const std::vector<float>& logits, const OwnWish& w, std::vector<long double>& p) {
  const std::size_t vocab = logits.size();
  std::vector<long double> l(logits.begin(), logits.end());
  for (const ChoiceEdit& e : w.edits) {
    long double& x = l[e.token];
    x += e.bias;
    if ((e.kinds & kChoiceRepeated) != 0) {
      x = x < 0 ? x * w.row.repetition_penalty : x / w.row.repetition_penalty;
      constexpr long double kMost = std::numeric_limits<float>::max();
      x = std::clamp(x, -kMost, kMost);
    }
    x -= e.minus;
    if ((e.kinds & kChoiceDropped) != 0) x = -kInfinity;
  }
  for (std::size_t t = 0; !w.allowed.empty() && t < vocab; ++t) {
    if ((w.allowed[t / 32] >> t % 32 & 1) == 0) l[t] = -kInfinity;
  }
  std::vector<std::size_t> order(vocab);
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return l[a] > l[b]; });
  const long double best = l[order[0]];
  p.assign(vocab, 0);
  for (std::size_t t = 0; t < vocab; ++t) {
    p[t] = std::exp((l[t] - best) * static_cast<long double>(w.row.inverse_temperature));
  }
  bool clear = true;
  auto near = [&](long double a, long double b) {
    if (std::fabs(a - b) <= 1e-4L * std::fabs(b) + 1e-9L) clear = false;
  };
  if (w.row.top_k > 0 && w.row.top_k < vocab) {
    const long double kth = l[order[w.row.top_k - 1]];
    for (std::size_t t = 0; t < vocab; ++t) {
      if (l[t] != kth && l[t] > -1e30L) near(l[t], kth);
      if (l[t] < kth) p[t] = 0;
    }
  }
  if (w.row.top_p != kNoTopP) {
    const long double enough =
        std::accumulate(p.begin(), p.end(), 0.0L) * std::ldexp((long double)w.row.top_p, -64);
    long double sum = 0;
    for (std::size_t t : order) {
      const long double own = p[t];
      if (sum > 0 && sum >= enough) p[t] = 0;
      sum += own;
      if (own > 0) near(sum, enough);
    }
  }
  const long double least = static_cast<long double>(w.row.min_weight) / kChoiceOne;
  for (long double& x : p) {
    if (x > 0 && x < 1) near(x, least);
    if (x < least) x = 0;
  }
  return clear;
}

TEST(TokenChoice, KeepsWhatIsAskedFor) {
  const std::uint64_t seed = test_seed();
  SCOPED_TRACE("seed " + std::to_string(seed));
  ChoiceLot lot(seed);
  std::mt19937_64 random(seed + 1);
  int compared = 0, greedy = 0;
  for (int round = 0; round < 4000; ++round) {
    const std::size_t vocab = 1 + random() % 90;
    std::vector<float> logits = lot.logits(vocab);
    OwnWish w = lot.wish(vocab);
    std::vector<float> changed = logits;
    ChoiceScratch scratch;
    const Choice got = choose_token(changed, w.wish(), scratch);
    SCOPED_TRACE("round " + std::to_string(round) + ", " + std::to_string(vocab) + " tokens, " +
                 w.to_string());
    if (got.status == ChoiceStatus::kNothing) {
      for (float l : changed) ASSERT_EQ(l, -kInfinity);
      continue;
    }
    ASSERT_EQ(got.status, ChoiceStatus::kChosen);
    const auto at = static_cast<std::size_t>(got.token);
    ASSERT_NE(changed[at], -kInfinity);
    if (w.row.inverse_temperature == 0) {
      ++greedy;
      ASSERT_EQ(std::max_element(changed.begin(), changed.end()) - changed.begin(), got.token);
      continue;
    }
    std::vector<long double> want;
    if (!reference(logits, w, want)) continue;
    ++compared;
    for (std::size_t t = 0; t < vocab; ++t) {
      // What weighs less than a unit is kept or not, and never drawn.
      if (want[t] > 0 && want[t] < 1e-11L) continue;
      ASSERT_EQ(changed[t] != -kInfinity && std::exp(changed[t]) > 0, want[t] > 0) << "token " << t;
    }
    ASSERT_GT(want[at], 0);
  }
  EXPECT_GT(compared, 500);
  EXPECT_GT(greedy, 200);
}

TEST(TokenChoice, DrawsInvertTheCumulativeWeights) {
  const std::vector<float> logits = {0.f, std::log(2.f), -kInfinity, std::log(5.f)};
  std::map<int, int> counts;
  constexpr std::uint64_t kDraws = 8000;
  for (std::uint64_t i = 0; i < kDraws; ++i) {
    ++counts[choose(logits,
                    {.row = {.random = i * (~std::uint64_t{0} / kDraws), .inverse_temperature = 1}})
                 .token];
  }
  EXPECT_NEAR(counts[0], kDraws / 8.0, 2);
  EXPECT_NEAR(counts[1], kDraws / 4.0, 2);
  EXPECT_EQ(counts[2], 0);
  EXPECT_NEAR(counts[3], kDraws * 5 / 8.0, 2);
}

// Chi-square over random numbers by lot.
TEST(TokenChoice, DrawsFollowTheDistribution) {
  const std::uint64_t seed = test_seed();
  SCOPED_TRACE("seed " + std::to_string(seed));
  ChoiceLot lot(seed);
  std::mt19937_64 random(seed);
  int tests = 0;
  while (tests < 8) {
    std::vector<float> logits = lot.logits(50);
    OwnWish w = lot.wish(50);
    std::vector<long double> p;
    if (w.row.inverse_temperature == 0 || !reference(logits, w, p)) continue;
    const long double total = std::accumulate(p.begin(), p.end(), 0.0L);
    if (choose(logits, w.wish()).status != ChoiceStatus::kChosen) continue;
    SCOPED_TRACE(w.to_string());
    constexpr int kDraws = 20000;
    std::vector<int> counts(50);
    for (int i = 0; i < kDraws; ++i) {
      w.row.random = random();
      ++counts[static_cast<std::size_t>(choose(logits, w.wish()).token)];
    }
    double chi2 = 0;
    int bins = 0;
    for (std::size_t t = 0; t < 50; ++t) {
      const double expected = static_cast<double>(p[t] / total) * kDraws;
      if (expected < 5) continue;
      chi2 += (counts[t] - expected) * (counts[t] - expected) / expected;
      ++bins;
    }
    EXPECT_LT(chi2, bins + 7 * std::sqrt(2.0 * bins));
    ++tests;
  }
}

TEST(TokenChoice, WhatIsNoNumberIsTold) {
  for (float bad : {std::numeric_limits<float>::quiet_NaN(), kInfinity}) {
    EXPECT_EQ(choose({1, bad, 2}, {}).status, ChoiceStatus::kNotNumbers);
    const ChoiceEdit edit{.token = 1, .kinds = kChoiceDropped};
    EXPECT_EQ(choose({1, bad, 2}, {.row = {}, .edits = {&edit, 1}}).status,
              ChoiceStatus::kNotNumbers);
  }
  EXPECT_EQ(choose({-kInfinity, -kInfinity}, {}).status, ChoiceStatus::kNothing);
}

TEST(TokenChoice, TellsTheRowAsItWas) {
  const std::vector<float> logits = {1, 3, 3, -kInfinity, 2};
  ChoiceResult result{.token = 4};
  ChoiceScratch scratch;
  tell_choice(logits, 3, result, scratch);
  EXPECT_EQ(result.rank, 3u);
  EXPECT_EQ(result.logit, 2.f);
  ASSERT_EQ(result.num_top, 3u);
  EXPECT_EQ(result.top[0].token, 1u);
  EXPECT_EQ(result.top[1].token, 2u);
  EXPECT_EQ(result.top[2].token, 4u);
  const double want = 2 + std::exp(-1) + std::exp(-2);
  EXPECT_NEAR(static_cast<double>(result.total) / kChoiceOne, want, 1e-6);
}

}  // namespace
}  // namespace stretto
