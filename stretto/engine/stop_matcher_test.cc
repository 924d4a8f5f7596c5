// Losing this, a user would see half of a stop string, miss text before it, or get text after it.
#include "stretto/engine/stop_matcher.h"

#include <gtest/gtest.h>

#include "stretto/base/test_errors.h"
#include "stretto/base/test_seed.h"

namespace stretto {
namespace {

struct Outcome {
  std::string text;
  bool stopped;
  bool operator==(const Outcome&) const = default;
};

void PrintTo(const Outcome& outcome, std::ostream* out) {
  *out << '\'' << outcome.text << "', stopped " << outcome.stopped;
}

Outcome feed(const std::vector<std::string>& stops, const std::vector<std::string>& pieces) {
  StopMatcher matcher(stops);
  std::string text;
  for (const std::string& piece : pieces) text += matcher.push(piece);
  text += matcher.finish();
  return {text, matcher.stopped()};
}

// By definition: the shortest beginning of the text that ends in a stop, cut before the longest
// such stop.
Outcome define(const std::vector<std::string>& stops, const std::string& text) {
  for (std::size_t end = 0; end <= text.size(); ++end) {
    std::size_t longest = 0;
    for (const std::string& stop : stops) {
      if (std::string_view(text).substr(0, end).ends_with(stop))
        longest = std::max(longest, stop.size());
    }
    if (longest > 0) return {text.substr(0, end - longest), true};
  }
  return {text, false};
}

TEST(StopMatcher, EverySplitIntoThreeGivesTheSame) {
  struct Case {
    std::vector<std::string> stops;
    std::string text;
  };
  const std::vector<Case> cases = {{{"STOP"}, "some text STOP and more STOP"},
                                   {{"STOP"}, "no stop here, just STO"},
                                   {{"\n\n", "###"}, "a\nb\n##\n\n###"},
                                   {{"aab"}, "aaaaaab!"},
                                   {{"abcabd", "ca"}, "abcabd"},
                                   {{"bc", "abcd", "xbc"}, "zxbcd"},
                                   {{"é", "</s>"}, "caf\xc3\xa9 </s>"},
                                   {{"a"}, "a"},
                                   {{}, "everything passes"},
                                   {{"longer than the text"}, "long"}};
  for (const Case& c : cases) {
    Outcome want = define(c.stops, c.text);
    for (std::size_t i = 0; i <= c.text.size(); ++i) {
      for (std::size_t j = i; j <= c.text.size(); ++j) {
        ASSERT_EQ(feed(c.stops, {c.text.substr(0, i), c.text.substr(i, j - i), c.text.substr(j)}),
                  want)
            << c.text << " split at " << i << " and " << j;
      }
    }
    std::vector<std::string> bytes;
    for (char byte : c.text) bytes.emplace_back(1, byte);
    ASSERT_EQ(feed(c.stops, bytes), want) << c.text;
  }
}

TEST(StopMatcher, RandomTextsAgreeWithTheDefinition) {
  std::uint64_t seed = test_seed();
  SCOPED_TRACE(testing::Message() << "STRETTO_TEST_SEED=" << seed);
  std::mt19937_64 random(seed);
  auto word = [&](std::size_t longest) {
    std::string text;
    for (std::size_t n = 1 + random() % longest; n > 0; --n)
      text += static_cast<char>('a' + random() % 2);
    return text;
  };
  for (int round = 0; round < 20000; ++round) {
    std::vector<std::string> stops;
    for (std::size_t n = 1 + random() % 3; n > 0; --n) stops.push_back(word(6));
    std::vector<std::string> pieces;
    std::string text;
    for (std::size_t n = random() % 8; n > 0; --n) text += pieces.emplace_back(word(4));
    ASSERT_EQ(feed(stops, pieces), define(stops, text)) << text;
  }
}

TEST(StopMatcher, HoldsBackNoMoreThanItMust) {
  StopMatcher matcher({"<end>", "xyz"});
  EXPECT_EQ(matcher.push("hello"), "hello");
  EXPECT_EQ(matcher.push(" <e"), " ");
  EXPECT_EQ(matcher.push("n"), "");
  EXPECT_EQ(matcher.push("t>"), "<ent>");
  EXPECT_EQ(matcher.push("x"), "");
  EXPECT_EQ(matcher.push("<"), "x");
  EXPECT_EQ(matcher.push("end>tail"), "");
  EXPECT_TRUE(matcher.stopped());
  EXPECT_EQ(matcher.push("more"), "");
  EXPECT_EQ(matcher.finish(), "");
}

TEST(StopMatcher, WholeCharactersStayWhole) {
  StopMatcher matcher({"\xc3\xa9!"});
  EXPECT_EQ(matcher.push("caf"), "caf");
  EXPECT_EQ(matcher.push("\xc3\xa9"), "");  // held as a whole: nothing is cut inside it
  EXPECT_EQ(matcher.push("?"), "\xc3\xa9?");
  EXPECT_EQ(matcher.push("\xc3\xa8"), "\xc3\xa8");  // shares only its first byte with the stop
}

TEST(StopMatcher, AnEmptyStopIsRefused) {
  expect_user_error([] { StopMatcher matcher({"a", ""}); }, {"stop", "must not be empty"});
}

}  // namespace
}  // namespace stretto
