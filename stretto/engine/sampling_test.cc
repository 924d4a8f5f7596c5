// Losing any of this, a temperature or a seed would mean something else here than in the library
// whose models we run.
#include "stretto/engine/sampling.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <set>
#include <tuple>

#include "stretto/base/test_errors.h"
#include "stretto/base/test_seed.h"
#include "stretto/engine/philox.h"

namespace stretto {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

using Logits = std::vector<float>;

// The transforms by their definitions, in double and with full sorts. `clear` turns false when a
// token lies so near to a threshold that float rounding may decide.
struct Reference {
  std::vector<double> probabilities;
  bool clear = true;

  Reference(const SamplingParams& params, const Logits& logits, const std::vector<int>& history) {
    std::vector<double> scores(logits.begin(), logits.end());
    for (int id : std::set<int>(history.begin(), history.end())) {
      double& score = scores[static_cast<std::size_t>(id)];
      score = score < 0 ? score * params.repetition_penalty : score / params.repetition_penalty;
    }
    for (double& score : scores) score /= params.temperature;
    cut_top_k(scores, static_cast<std::size_t>(params.top_k));
    if (params.top_p < 1) cut_top_p(scores, params.top_p);
    cut_min_p(scores, params.min_p);
    probabilities = softmax(scores);
  }

  static std::vector<double> softmax(const std::vector<double>& scores) {
    double best = *std::max_element(scores.begin(), scores.end());
    std::vector<double> p;
    for (double score : scores) p.push_back(std::exp(score - best));
    double total = std::accumulate(p.begin(), p.end(), 0.0);
    for (double& x : p) x /= total;
    return p;
  }
  static void cut_top_k(std::vector<double>& scores, std::size_t k) {
    if (k == 0 || k >= scores.size()) return;
    std::vector<double> sorted = scores;
    std::sort(sorted.rbegin(), sorted.rend());
    for (double& score : scores) score = score < sorted[k - 1] ? -INFINITY : score;
  }
  // Ascending, as in the original: what lies within the first 1 - p of the mass goes, but never the
  // best token.
  void cut_top_p(std::vector<double>& scores, double top_p) {
    std::vector<double> p = softmax(scores);
    std::vector<std::size_t> order(scores.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
      return scores[a] != scores[b] ? scores[a] < scores[b] : a > b;
    });
    double mass = 0;
    for (std::size_t i = 0; i + 1 < order.size(); ++i) {
      mass += p[order[i]];
      if (std::fabs(mass - (1 - top_p)) < 1e-5) clear = false;
      if (mass <= 1 - top_p) scores[order[i]] = -INFINITY;
    }
  }
  void cut_min_p(std::vector<double>& scores, double min_p) {
    std::vector<double> p = softmax(scores);
    double threshold = min_p * *std::max_element(p.begin(), p.end());
    for (std::size_t i = 0; i < p.size(); ++i) {
      if (min_p > 0 && std::fabs(p[i] / threshold - 1) < 1e-4) clear = false;
      if (p[i] < threshold) scores[i] = -INFINITY;
    }
  }
};

Logits random_logits(std::mt19937_64& random, std::size_t size, double spread) {
  std::normal_distribution<double> normal(0.0, spread);
  Logits logits;
  for (std::size_t i = 0; i < size; ++i) logits.push_back(static_cast<float>(normal(random)));
  return logits;
}

TEST(Philox, AgreesWithTheAuthorsVectors) {
  using Words = std::array<std::uint32_t, 4>;
  EXPECT_EQ(philox4x32({0, 0, 0, 0}, {0, 0}),
            (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  constexpr std::uint32_t kOnes = 0xffffffff;
  EXPECT_EQ(philox4x32({kOnes, kOnes, kOnes, kOnes}, {kOnes, kOnes}),
            (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
  EXPECT_EQ(philox_uniform(0, 0),
            static_cast<double>(0xe169c58d6627e8d5ull >> 11) / 9007199254740992.0);
}

TEST(Philox, UniformIsFlatOverCountersAndOverSeeds) {
  for (bool over_seeds : {false, true}) {
    std::vector<int> bins(64, 0);
    constexpr int kDraws = 64000;
    for (std::uint64_t i = 0; i < kDraws; ++i) {
      double u = over_seeds ? philox_uniform(i, 3) : philox_uniform(3, i);
      ASSERT_TRUE(u >= 0 && u < 1);
      ++bins[static_cast<std::size_t>(u * 64)];
    }
    double chi2 = 0;
    for (int n : bins) chi2 += (n - 1000.0) * (n - 1000.0) / 1000.0;
    EXPECT_LT(chi2, 63 + 6 * std::sqrt(2 * 63.0));
  }
}

TEST(Sampler, TransformsAgreeWithTheirDefinitions) {
  std::uint64_t seed = test_seed();
  SCOPED_TRACE(testing::Message() << "STRETTO_TEST_SEED=" << seed);
  std::mt19937_64 random(seed);
  auto pick = [&](const std::vector<double>& options) {
    return options[random() % options.size()];
  };
  int compared = 0;
  for (int round = 0; round < 3000; ++round) {
    std::size_t vocab = 1 + random() % 60;
    SamplingParams params{.temperature = pick({0.1, 0.7, 1.0, 1.5, 10}),
                          .top_k = static_cast<std::int64_t>(pick({0, 1, 3, 20, 1000})),
                          .top_p = pick({0, 0.05, 0.5, 0.9, 0.999, 1}),
                          .min_p = pick({0, 0.01, 0.2, 1}),
                          .repetition_penalty = pick({1, 1.3, 0.8}),
                          .seed = random()};
    Logits logits = random_logits(random, vocab, pick({0.5, 3, 20}));
    if (vocab > 2 && random() % 4 == 0)
      logits[random() % vocab] = logits[random() % vocab];  // a tie
    std::vector<int> history;
    for (std::size_t n = random() % 10; n > 0; --n)
      history.push_back(static_cast<int>(random() % vocab));
    Reference reference(params, logits, history);
    if (!reference.clear) continue;
    ++compared;
    Logits changed = logits;
    int token = Sampler(params).sample(changed, history);
    ASSERT_GT(reference.probabilities[static_cast<std::size_t>(token)], 0);
    std::vector<double> got = Reference::softmax({changed.begin(), changed.end()});
    for (std::size_t i = 0; i < vocab; ++i) {
      ASSERT_NEAR(got[i], reference.probabilities[i], 1e-5) << "token " << i << " of " << vocab;
      ASSERT_EQ(got[i] == 0, reference.probabilities[i] == 0) << "token " << i << " of " << vocab;
    }
  }
  EXPECT_GT(compared, 1500);
}

TEST(Sampler, DrawsFollowTheDistribution) {
  std::mt19937_64 random(20240607);
  const std::vector<SamplingParams> cases = {{.temperature = 1, .seed = 1},
                                             {.temperature = 0.7, .top_k = 8, .seed = 2},
                                             {.temperature = 1.3, .top_p = 0.8, .seed = 3},
                                             {.temperature = 2, .min_p = 0.1, .seed = 4},
                                             {.temperature = 1,
                                              .top_k = 12,
                                              .top_p = 0.95,
                                              .min_p = 0.02,
                                              .repetition_penalty = 1.2,
                                              .seed = 5}};
  for (const SamplingParams& params : cases) {
    SCOPED_TRACE(testing::Message() << "seed " << params.seed);
    Logits logits = random_logits(random, 40, 1.5);
    std::vector<int> history = {3, 7, 3};
    Reference reference(params, logits, history);
    Sampler sampler(params);
    std::vector<int> counts(logits.size(), 0);
    constexpr int kDraws = 20000;
    for (int i = 0; i < kDraws; ++i) {
      Logits scratch = logits;
      ++counts[static_cast<std::size_t>(sampler.sample(scratch, history))];
    }
    double chi2 = 0;
    int bins = 0;
    for (std::size_t i = 0; i < counts.size(); ++i) {
      double expected = reference.probabilities[i] * kDraws;
      ASSERT_TRUE(expected > 0 || counts[i] == 0) << i;
      if (expected < 1) continue;
      chi2 += (counts[i] - expected) * (counts[i] - expected) / expected;
      ++bins;
    }
    ASSERT_GT(bins, 3);
    EXPECT_LT(chi2, bins + 6 * std::sqrt(2.0 * bins));
  }
}

TEST(Sampler, ASeedAlwaysGivesTheseTokens) {
  Logits logits;
  for (int i = 0; i < 1000; ++i) logits.push_back(static_cast<float>(i % 37) * 0.125f);
  auto draw = [&](std::uint64_t seed) {
    Sampler sampler({.temperature = 0.9, .top_k = 400, .top_p = 0.98, .seed = seed});
    std::vector<int> tokens;
    for (int i = 0; i < 8; ++i) {
      Logits scratch = logits;
      tokens.push_back(sampler.sample(scratch, tokens));
    }
    return tokens;
  };
  EXPECT_EQ(draw(42), (std::vector<int>{478, 331, 664, 692, 848, 295, 765, 406}));
  EXPECT_NE(draw(43), draw(42));
  EXPECT_NE(draw(42 + (std::uint64_t{1} << 32)), draw(42))
      << "the upper half of the seed is ignored";
}

TEST(Sampler, GreedyTakesTheLowestOfEquals) {
  Sampler greedy({});
  Logits logits = {1, 3, -2, 3, 3};
  EXPECT_EQ(greedy.sample(logits, {}), 1);
  Logits one = {-7};
  EXPECT_EQ(greedy.sample(one, {}), 0);
  Logits masked = {-kInfinity, -5, -kInfinity};
  EXPECT_EQ(greedy.sample(masked, {}), 1);
  Logits extreme = {-std::numeric_limits<float>::max(), std::numeric_limits<float>::max()};
  EXPECT_EQ(greedy.sample(extreme, {}), 1);
}

TEST(Sampler, RepetitionPenaltyAppliesOncePerTokenAndAlsoToGreedy) {
  Sampler sampler({.repetition_penalty = 2});
  std::vector<int> history = {1, 1, 1, 2};
  Logits logits = {1.1f, 2, -1, -1.5f};
  EXPECT_EQ(sampler.sample(logits, history), 0);
  EXPECT_EQ(logits, (Logits{1.1f, 1, -2, -1.5f}));
  Logits again = {0.9f, 2, -1, -1.5f};
  EXPECT_EQ(sampler.sample(again, std::vector<int>{2}), 1)
      << "the history of the last call was kept";
  Logits huge = {-3e38f, -3e38f, -kInfinity};
  EXPECT_EQ(Sampler({.repetition_penalty = 1000}).sample(huge, std::vector<int>{0, 1, 2}), 0);
}

TEST(Sampler, ExtremeParametersAreWellDefined) {
  Logits logits = {0.5f, 2, 1, -kInfinity};
  auto always = [&](SamplingParams params) {
    std::set<int> tokens;
    for (params.seed = 0; params.seed < 300; ++params.seed) {
      Logits scratch = logits;
      tokens.insert(Sampler(params).sample(scratch, {}));
    }
    return tokens;
  };
  EXPECT_EQ(always({.temperature = 1, .top_p = 0}), (std::set<int>{1}));
  EXPECT_EQ(always({.temperature = 1, .top_k = 1}), (std::set<int>{1}));
  EXPECT_EQ(always({.temperature = 1, .min_p = 1}), (std::set<int>{1}));
  EXPECT_EQ(always({.temperature = 1e-300}), (std::set<int>{1}));
  EXPECT_EQ(always({.temperature = 1, .top_k = 1 << 30, .top_p = 1}), (std::set<int>{0, 1, 2}));
  EXPECT_EQ(always({.temperature = 1000, .top_k = 2}), (std::set<int>{1, 2}));
  logits = {2, 2, 1};
  EXPECT_EQ(always({.temperature = 1, .top_k = 1}), (std::set<int>{0, 1}))
      << "what ties with the k-th stays";
  EXPECT_EQ(always({.temperature = 1, .top_p = 0}), (std::set<int>{0}));
  EXPECT_EQ(always({.temperature = 1, .min_p = 1}), (std::set<int>{0, 1}));
}

TEST(Sampler, LogitsThatAreNoDistributionAreTheModelsFault) {
  for (SamplingParams params : {SamplingParams{}, SamplingParams{.temperature = 1, .top_k = 2}}) {
    Sampler sampler(params);
    for (float bad : {std::numeric_limits<float>::quiet_NaN(), kInfinity}) {
      for (std::size_t at : {0, 1, 2}) {
        Logits logits = {1, 2, 3};
        logits[at] = bad;
        expect_user_error([&] { sampler.sample(logits, {}); },
                          {"logit", "token " + std::to_string(at), "dtype"});
      }
    }
    Logits none = {-kInfinity, -kInfinity};
    expect_user_error([&] { sampler.sample(none, {}); }, {"-inf for every token"});
    Logits empty;
    EXPECT_THROW(sampler.sample(empty, {}), InternalError);
  }
  Sampler penalised({.repetition_penalty = 2});
  for (int outside : {-1, 3}) {
    Logits logits = {1, 2, 3};
    EXPECT_THROW(penalised.sample(logits, std::vector<int>{outside}), InternalError);
  }
}

TEST(SamplingParams, BoundsAreNamed) {
  auto refuse = [](const SamplingParams& params, const char* field) {
    expect_user_error([&] { Sampler sampler(params); }, {field, "got"});
  };
  for (double bad : {-0.1, 1000.5, std::nan(""), HUGE_VAL})
    refuse({.temperature = bad}, "temperature");
  for (double bad : {-0.1, 1.1, std::nan("")}) refuse({.top_p = bad}, "top_p");
  for (double bad : {-0.1, 1.1, std::nan("")}) refuse({.min_p = bad}, "min_p");
  for (double bad : {0.0, -1.0, 1001.0, std::nan("")})
    refuse({.repetition_penalty = bad}, "repetition_penalty");
  refuse({.top_k = -1}, "top_k");
}

TEST(LogSoftmax, AgreesWithLongDoubleAndSumsToOne) {
  std::uint64_t seed = test_seed();
  SCOPED_TRACE(testing::Message() << "STRETTO_TEST_SEED=" << seed);
  std::mt19937_64 random(seed);
  for (double spread : {0.01, 1.0, 50.0, 1e30}) {
    Logits logits = random_logits(random, 777, spread);
    logits[5] = -kInfinity;
    long double best = *std::max_element(logits.begin(), logits.end());
    long double total = 0;
    for (float x : logits) total += std::exp(static_cast<long double>(x) - best);
    std::vector<double> out(logits.size(), 12345.0);
    log_softmax(logits, out);
    double sum = 0;
    for (std::size_t i = 0; i < logits.size(); ++i) {
      auto want = static_cast<double>(static_cast<long double>(logits[i]) - best - std::log(total));
      ASSERT_EQ(out[i], log_probability(logits, static_cast<int>(i)));
      sum += std::exp(out[i]);
      if (i == 5) continue;
      ASSERT_NEAR(out[i], want, 1e-12 * std::max(1.0, std::fabs(want)));
    }
    EXPECT_EQ(out[5], -HUGE_VAL);
    EXPECT_NEAR(sum, 1.0, 1e-12);
  }
}

// What the OpenAI API adds, by its definitions.
TEST(Restrictions, PenaltiesCountWhatWasGenerated) {
  SamplingParams params{.presence_penalty = 0.5, .frequency_penalty = 0.25};
  const std::vector<int> history = {0, 0, 0, 1, 1, 2};  // the last three were generated
  Logits logits = {1.0f, 1.6f, 1.7f, 0.9f};             // less 0, 0.5 + 2 * 0.25, 0.5 + 0.25, 0
  EXPECT_EQ(Sampler(params).sample(logits, history, 3), 0);
  EXPECT_FLOAT_EQ(logits[1], 0.6f);
  EXPECT_FLOAT_EQ(logits[2], 0.95f);
  params.presence_penalty = params.frequency_penalty = -2;
  logits = {1.0f, 0.0f, 0.0f, 0.9f};
  EXPECT_EQ(Sampler(params).sample(logits, history, 3), 1);
}

TEST(Restrictions, BiasAndAllowedTokensDecideWhatIsLeft) {
  Logits logits = {3, 2, 1, 0};
  EXPECT_EQ(Sampler({.logit_bias = {{3, 100.0f}}}).sample(logits, {}), 3);
  logits = {3, 2, 1, 0};
  EXPECT_EQ(Sampler({.allowed_tokens = {3, 2}}).sample(logits, {}), 2);
  EXPECT_EQ(logits[0], -kInfinity);
  logits = {3, 2, -kInfinity, -kInfinity};  // what is allowed cannot be drawn: then all may
  EXPECT_EQ(Sampler({.allowed_tokens = {3, 2}}).sample(logits, {}), 0);
}

TEST(Restrictions, EndsComeNotBeforeTheLeastTokens) {
  Sampler sampler({.min_tokens = 2, .ends = {0}});
  const std::vector<int> history = {1, 1};
  for (std::size_t generated : {std::size_t{0}, std::size_t{1}, std::size_t{2}}) {
    Logits logits = {3, 2, 1};
    EXPECT_EQ(sampler.sample(logits, history, generated), generated < 2 ? 1 : 0);
  }
  Logits alone = {3, -kInfinity, -kInfinity};  // nothing else is left
  EXPECT_EQ(sampler.sample(alone, history, 0), 0);
}

// A sampler that has followed an answer token by token wishes what one wishes that sees all of it
// for the first time, which is what happens to a request that is computed again.
TEST(Restrictions, AWishIsOfTheHistoryAlone) {
  const std::uint64_t seed = test_seed();
  SCOPED_TRACE(testing::Message() << "STRETTO_TEST_SEED=" << seed);
  std::mt19937_64 random(seed);
  constexpr std::size_t kVocab = 40;
  auto edits_of = [](const ChoiceWish& w) {
    std::map<unsigned, std::tuple<float, float, unsigned>> out;
    for (const ChoiceEdit& e : w.edits) {
      if (e.bias == 0 && e.minus == 0 && e.kinds == 0) continue;  // changes nothing
      out[e.token] = {e.bias, e.minus, e.kinds};
    }
    return out;
  };
  for (int round = 0; round < 50; ++round) {
    const SamplingParams params{
        .repetition_penalty = random() % 2 == 0 ? 1 : 1.3,
        .presence_penalty = random() % 2 == 0 ? 0 : 0.5,
        .frequency_penalty = random() % 2 == 0 ? 0 : -0.25,
        .logit_bias = {{3, 1.5f}, {7, -2.f}, {3, 0.25f}},
        .allowed_tokens = random() % 2 == 0 ? std::vector<int>{} : std::vector<int>{1, 3, 39},
        .min_tokens = 3,
        .ends = {2, 3}};
    std::vector<int> history;
    for (std::size_t n = 1 + random() % 20; n > 0; --n) {
      history.push_back(static_cast<int>(random() % kVocab));
    }
    Sampler follows(params);
    for (std::size_t generated = 0; generated < 12; ++generated) {
      Sampler fresh(params);
      const ChoiceWish a = follows.wish(kVocab, history, generated);
      const ChoiceWish b = fresh.wish(kVocab, history, generated);
      ASSERT_EQ(edits_of(a), edits_of(b)) << "after " << generated;
      ASSERT_TRUE(
          std::equal(a.allowed.begin(), a.allowed.end(), b.allowed.begin(), b.allowed.end()));
      history.push_back(static_cast<int>(random() % kVocab));
    }
  }
}

TEST(Restrictions, BiasesOfOneTokenAddUp) {
  Logits logits = {0, 0, 0, 0, 1.6f};
  EXPECT_EQ(Sampler({.logit_bias = {{3, 1.5f}, {3, 0.25f}}}).sample(logits, {}), 3);
}

TEST(Restrictions, AMaskComesBeforeAllowedTokens) {
  const std::vector<std::uint32_t> mask = {0b0110};
  Logits logits = {3, 2, 1, 0};
  EXPECT_EQ(Sampler({}).sample(logits, {}, 0, mask), 1);
  logits = {3, 2, 1, 0};
  EXPECT_EQ(Sampler({.allowed_tokens = {2, 3}}).sample(logits, {}, 0, mask), 2);
  logits = {3, 2, 1, 0};  // none is in both: the mask counts
  EXPECT_EQ(Sampler({.allowed_tokens = {0, 3}}).sample(logits, {}, 0, mask), 1);
  logits = {3, -kInfinity, -kInfinity, 0};
  expect_user_error([&] { Sampler({}).sample(logits, {}, 0, mask); }, {"-inf for every token"});
}

TEST(Restrictions, ChoicesOfOneSeedDrawDifferently) {
  const std::uint64_t seed = test_seed();
  std::set<std::vector<int>> all;
  for (std::uint32_t choice = 0; choice < 4; ++choice) {
    std::vector<int> draws;
    for (int again = 0; again < 2; ++again) {
      Sampler sampler({.temperature = 1, .seed = seed, .choice = choice});
      std::vector<int> now;
      for (int i = 0; i < 32; ++i) {
        Logits even(100, 0.0f);
        now.push_back(sampler.sample(even, {}));
      }
      if (again == 1) {
        EXPECT_EQ(now, draws);
      }
      draws = now;
    }
    all.insert(draws);
  }
  EXPECT_EQ(all.size(), 4u) << "seed " << seed;
}

TEST(Restrictions, RangesAreChecked) {
  EXPECT_THROW(Sampler({.presence_penalty = 2.1}), UserError);
  EXPECT_THROW(Sampler({.frequency_penalty = -2.1}), UserError);
  EXPECT_THROW(Sampler({.logit_bias = {{0, 101.0f}}}), UserError);
  EXPECT_THROW(Sampler({.min_tokens = -1}), UserError);
}

}  // namespace
}  // namespace stretto
