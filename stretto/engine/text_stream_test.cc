// A text reaches a client the same however the model cuts it into tokens.
#include "stretto/engine/text_stream.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "stretto/base/test_seed.h"

namespace stretto {
namespace {

const Tokenizer& tokenizer() {
  static const Tokenizer all = Tokenizer::load("checkpoints/debian-llama-draft-1m");
  return all;
}

// By definition, as stop_matcher_test.cc has it: the text before the stop string that is whole
// first, of several the longest.
std::string before_stop(const std::vector<std::string>& stops, const std::string& text) {
  for (std::size_t end = 0; end <= text.size(); ++end) {
    std::size_t longest = 0;
    for (const std::string& stop : stops) {
      if (std::string_view(text).substr(0, end).ends_with(stop)) {
        longest = std::max(longest, stop.size());
      }
    }
    if (longest > 0) return text.substr(0, end - longest);
  }
  return text;
}

// All ways to write `text` in tokens, up to `most`.
void add_ways(std::string_view text, std::vector<int>& so_far, std::size_t most,
              std::vector<std::vector<int>>& out) {
  static const std::vector<std::string> tokens = tokenizer().token_bytes();
  if (out.size() >= most) return;
  if (text.empty()) return out.push_back(so_far);
  for (std::size_t id = 0; id < tokens.size(); ++id) {
    if (tokens[id].empty() || !text.starts_with(tokens[id])) continue;
    if (tokenizer().is_special(static_cast<int>(id))) continue;
    so_far.push_back(static_cast<int>(id));
    add_ways(text.substr(tokens[id].size()), so_far, most, out);
    so_far.pop_back();
  }
}

TEST(TextStream, AllWaysToCutATextIntoTokensEndItAlike) {
  std::mt19937_64 random(test_seed());
  SCOPED_TRACE("STRETTO_TEST_SEED=" + std::to_string(test_seed()));
  struct Case {
    std::vector<std::string> stops;
    std::string text;
  };
  std::vector<Case> cases = {{{" library"}, "a shared library for"},
                             {{"ing", "printing"}, "is printing it"},
                             {{"\n\n"}, "one\n\n\ntwo"},
                             {{"é", "ca"}, "le café"},
                             {{"e for"}, "the e fo the"}};
  static constexpr const char* kPieces[] = {"a", "in", "ing", " the", "\n", "é", "日", "th", "e"};
  for (int i = 0; i < 30; ++i) {
    auto draw = [&](std::size_t count) {
      std::string out;
      while (count-- > 0) out += kPieces[random() % std::size(kPieces)];
      return out;
    };
    cases.push_back({{draw(1 + random() % 2), draw(2)}, draw(3 + random() % 3)});
  }
  std::size_t num_ways = 0;
  for (const Case& c : cases) {
    std::vector<std::vector<int>> ways;
    std::vector<int> so_far;
    add_ways(c.text, so_far, 400, ways);
    ASSERT_FALSE(ways.empty()) << c.text;
    num_ways += ways.size();
    const std::string want = before_stop(c.stops, c.text);
    for (const std::vector<int>& tokens : ways) {
      TextStream stream(tokenizer(), {.stop = c.stops, .max_tokens = 1000});
      std::string got;
      for (int token : tokens) {
        got += stream.push(token);
        ASSERT_TRUE(want.starts_with(got))
            << got << " of " << c.text << ": what is sent stays sent";
        if (stream.end() != TextStream::End::kNone) break;
      }
      if (stream.end() == TextStream::End::kNone) got += stream.finish();
      ASSERT_EQ(got, want) << c.text;
    }
  }
  EXPECT_GT(num_ways, 1000u);
}

}  // namespace
}  // namespace stretto
