// The parts below Tokenizer where the reference's results are known by heart or follow from a
// standard.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <random>

#include "stretto/base/errors.h"
#include "stretto/base/json.h"
#include "stretto/base/test_seed.h"
#include "stretto/model/tokenizer/byte_level.h"
#include "stretto/model/tokenizer/merge_table.h"
#include "stretto/model/tokenizer/pre_tokenizer.h"
#include "stretto/model/tokenizer/regex.h"
#include "stretto/model/tokenizer/tokenizer.h"
#include "stretto/model/tokenizer/unicode_data.h"
#include "stretto/model/tokenizer/unicode_normalize.h"
#include "stretto/model/tokenizer/utf8.h"

namespace stretto::tokenization {
namespace {

std::vector<std::string> matches(const Regex& regex, const std::string& text) {
  std::vector<std::string> out;
  for (const auto& [begin, end] : regex.find_all(text))
    out.push_back(text.substr(begin, end - begin));
  return out;
}

std::vector<std::string> pieces(const char* json, const std::string& text) {
  const Json parsed = Json::parse(json);
  Pieces state{text, {{0, text.size()}}};
  parse_pre_tokenizer(JsonNode(parsed, "test"))->apply(state);
  std::vector<std::string> out;
  for (const auto& [begin, end] : state.spans) out.push_back(state.text.substr(begin, end - begin));
  return out;
}

using Strings = std::vector<std::string>;

TEST(Utf8, ReplacesLikePython) {
  const std::string r(kReplacement);
  EXPECT_EQ(replace_invalid_utf8("a\xFFz"), "a" + r + "z");
  EXPECT_EQ(replace_invalid_utf8("\xE2\x82"), r);  // cut off: one subpart
  EXPECT_EQ(replace_invalid_utf8("\xE2\x82z"), r + "z");
  EXPECT_EQ(replace_invalid_utf8("\xED\xA0\x80"),
            r + r + r);                                // a surrogate: no valid prefix beyond ED
  EXPECT_EQ(replace_invalid_utf8("\xC0\xAF"), r + r);  // overlong
  EXPECT_EQ(replace_invalid_utf8("\xF4\x90\x80\x80"), r + r + r + r);  // above U+10FFFF
  EXPECT_EQ(replace_invalid_utf8("\xF0\x9F\x98\xF0\x9F\x98\x80"), r + "\xF0\x9F\x98\x80");
  EXPECT_FALSE(is_valid_utf8("\xF0\x9F\x98"));
  EXPECT_TRUE(is_valid_utf8("\xF0\x9F\x98\x80"));
}

TEST(UnicodeData, KnowsUnicode16) {
  EXPECT_EQ(general_category(0x10D40), "Nd");  // Garay, new in 16.0
  EXPECT_EQ(general_category(0x2EBF0), "Lo");  // CJK extension I, 15.1
  EXPECT_EQ(general_category(0x0378), "Cn");
  EXPECT_TRUE(is_word(0x24B6));  // a symbol, but alphabetic
  EXPECT_FALSE(is_whitespace(0x200B));
}

TEST(Normalize, MatchesTheStandard) {
  EXPECT_EQ(normalize("e\xCC\x81", NormalForm::kNfc), "\xC3\xA9");
  EXPECT_EQ(normalize("\xC3\xA9", NormalForm::kNfd), "e\xCC\x81");
  EXPECT_EQ(normalize("\xE1\xBA\x9B\xCC\xA3", NormalForm::kNfkc),
            "\xE1\xB9\xA9");  // U+1E9B U+0323 -> U+1E69
  EXPECT_EQ(normalize("\xEA\xB0\x81", NormalForm::kNfd),
            "\xE1\x84\x80\xE1\x85\xA1\xE1\x86\xA8");  // Hangul
  EXPECT_EQ(normalize("a\xCC\x81\xCC\xA3", NormalForm::kNfd),
            "a\xCC\xA3\xCC\x81");  // marks reorder
}

// Gnome sorts, as in some libraries, take hours for this.
TEST(Normalize, LongRunsOfMarksAreLinear) {
  std::string text = "a";
  for (int i = 0; i < 200'000; ++i) text += "\xCC\x81\xCC\xA3";
  const std::string sorted = normalize(text, NormalForm::kNfd);
  ASSERT_EQ(sorted.size(), text.size());
  EXPECT_EQ(sorted.substr(0, 5), "a\xCC\xA3\xCC\xA3");
  EXPECT_EQ(sorted.substr(sorted.size() - 4), "\xCC\x81\xCC\x81");
}

TEST(Regex, LookAheadCaseFoldingAndClasses) {
  EXPECT_EQ(matches(Regex(R"(\s+(?!\S)|\s+)", "t"), "a   b "), (Strings{"  ", " ", " "}));
  EXPECT_EQ(matches(Regex("(?i:'s)", "t"), "'S'\xC5\xBF"),
            (Strings{"'S", "'\xC5\xBF"}));  // U+017F folds to s
  EXPECT_EQ(matches(Regex(R"([^\s\p{L}])", "t"), "x\xF0\xB1\x8D\x90y1"),
            (Strings{"1"}));  // U+31350 is a letter
  EXPECT_EQ(matches(Regex::literal("a.b*", "t"), "axb*a.b*"), (Strings{"a.b*"}));
}

TEST(Regex, RefusesWhatCannotRun) {
  EXPECT_THROW(Regex("(", "t"), UserError);
  EXPECT_THROW(Regex(std::string(1 << 20, 'a'), "t"), UserError);
  const Regex exponential(R"((?:a|aa|aaa)+!\z)", "tokenizer.json: x");
  EXPECT_THROW(exponential.find_all(std::string(5000, 'a') + "!x"), UserError);
}

TEST(PreTokenizer, Gpt2Pieces) {
  EXPECT_EQ(pieces(R"({"type":"ByteLevel","add_prefix_space":true})", "I'll go  to 42!"),
            (Strings{"ĠI", "'ll", "Ġgo", "Ġ", "Ġto", "Ġ42", "!"}));
}

TEST(PreTokenizer, SplitBehaviors) {
  const auto split = [](const std::string& behavior, bool invert) {
    const std::string json = R"({"type":"Split","pattern":{"String":"-"},"behavior":")" + behavior +
                             R"(","invert":)" + (invert ? "true}" : "false}");
    return pieces(json.c_str(), "the-final--countdown");
  };
  EXPECT_EQ(split("Removed", false), (Strings{"the", "final", "countdown"}));
  EXPECT_EQ(split("Isolated", false), (Strings{"the", "-", "final", "-", "-", "countdown"}));
  EXPECT_EQ(split("MergedWithPrevious", false), (Strings{"the-", "final-", "-", "countdown"}));
  EXPECT_EQ(split("MergedWithNext", false), (Strings{"the", "-final", "-", "-countdown"}));
  EXPECT_EQ(split("Contiguous", false), (Strings{"the", "-", "final", "--", "countdown"}));
  EXPECT_EQ(split("Removed", true), (Strings{"-", "-", "-"}));
}

TEST(ByteLevel, EveryByteComesBack) {
  std::string bytes;
  for (int i = 0; i < 256; ++i) bytes += static_cast<char>(i);
  std::string written;
  append_byte_level(written, bytes);
  EXPECT_TRUE(is_valid_utf8(written));
  std::string back;
  append_token_bytes(back, written);
  EXPECT_EQ(back, bytes);
  back.clear();
  append_token_bytes(back, "Ġ字");  // a character outside the alphabet: the token is plain text
  EXPECT_EQ(back, "Ġ字");
}

TEST(MergeTable, FindsWhatWasInserted) {
  MergeTable table(1000);
  for (int i = 0; i < 1000; ++i)
    table.insert(i, i * 7 % 31, {static_cast<std::uint32_t>(i), i + 1});
  for (int i = 0; i < 1000; ++i) {
    ASSERT_NE(table.find(i, i * 7 % 31), nullptr);
    EXPECT_EQ(table.find(i, i * 7 % 31)->merged, i + 1);
    EXPECT_EQ(table.find(i, 31), nullptr);
  }
}

// Whatever steps a decoder has, in any order.
TEST(TokenizerParts, StreamedTextsAreTheWhole) {
  const char* const steps[] = {
      R"({"type": "Fuse"})",
      R"({"type": "ByteLevel"})",
      R"({"type": "ByteFallback"})",
      R"({"type": "Replace", "pattern": {"String": "ab"}, "content": "x"})",
      R"({"type": "Strip", "content": " ", "start": 1, "stop": 1})",
      R"({"type": "Metaspace", "replacement": "_", "prepend_scheme": "always"})",
      R"({"type": "WordPiece", "prefix": "##", "cleanup": true})",
      R"({"type": "BPEDecoder", "suffix": "b"})"};
  Json json = Json::parse(R"({
    "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "_": 2, " ": 3, "<0xC3>": 4, "<0xA9>": 5,
                                       "\u00c3": 6, "\u00a9": 7, "\u20ac": 8, "##a": 9, ".": 10,
                                       "'": 11, "n": 12, "t": 13},
              "merges": []}
  })");
  constexpr int kTokens = 14;
  const auto seed = test_seed();
  SCOPED_TRACE(fmt::format("seed {}", seed));
  std::mt19937 random(seed);
  auto below = [&](std::size_t n) { return random() % n; };
  for (int round = 0; round < 1500; ++round) {
    Json chain = Json::array();
    for (std::size_t i = 1 + below(4); i > 0; --i)
      chain.push_back(Json::parse(steps[below(std::size(steps))]));
    json["decoder"] = {{"type", "Sequence"}, {"decoders", chain}};
    const Tokenizer tokenizer = Tokenizer::parse(json.dump(), std::nullopt, "DIR");
    for (int text = 0; text < 8; ++text) {
      std::vector<int> ids(below(7));
      for (int& id : ids) id = static_cast<int>(below(kTokens));
      StreamDecoder stream(tokenizer);
      std::string streamed;
      for (int id : ids) streamed += stream.push(id);
      streamed += stream.finish();
      ASSERT_EQ(streamed, tokenizer.decode(ids))
          << chain.dump() << fmt::format(" of {}", fmt::join(ids, " "));
    }
  }
}

// As the reference counts it, by the place in the original text: where a normaliser removed what
// stood first, nothing is first any more. Ids are those of tokenizers 0.23.3.
TEST(TokenizerParts, MetaspaceKnowsWhatStoodFirst) {
  Json json = Json::parse(R"({
    "pre_tokenizer": {"type": "Metaspace", "replacement": "_", "prepend_scheme": "first"},
    "model": {"type": "BPE", "vocab": {"_": 0, "a": 1, "_a": 2, "x": 3}, "merges": [["_", "a"]]}
  })");
  const std::vector<int> marked{2}, bare{1};
  struct Case {
    const char* normalizer;
    const char* text;
    const std::vector<int>& ids;
  };
  const Case cases[] = {
      {R"({"type": "Strip", "strip_left": true, "strip_right": true})", "a", marked},
      {R"({"type": "Strip", "strip_left": true, "strip_right": true})", " a", bare},
      {R"({"type": "Strip", "strip_left": true, "strip_right": true})", "a ", marked},
      {R"({"type": "StripAccents"})", "\u0301a", bare},
      {R"({"type": "StripAccents"})", "a\u0301", marked},
      {R"({"type": "Nmt"})", "\u0001a", bare},
      {R"({"type": "BertNormalizer"})", "\u0301a", bare},
      {R"({"type": "BertNormalizer"})", "\u200da", bare},
      {R"({"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": ""})", "  a", bare},
      {R"({"type": "Replace", "pattern": {"String": "b"}, "content": "a"})", "b", marked},
      {R"({"type": "Replace", "pattern": {"String": "b"}, "content": ""})", "ab", marked},
      {R"({"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "Lowercase"},
           {"type": "Strip", "strip_left": true, "strip_right": false}]})",
       "\nA", bare},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(std::string(c.normalizer) + " of '" + c.text + "'");
    json["normalizer"] = Json::parse(c.normalizer);
    EXPECT_EQ(Tokenizer::parse(json.dump(), std::nullopt, "DIR").encode(c.text), c.ids);
  }
}

}  // namespace
}  // namespace stretto::tokenization
