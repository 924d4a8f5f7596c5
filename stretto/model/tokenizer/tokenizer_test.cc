// What a user loses when these fail: prompts reach the model as other ids than it was trained on,
// or its answer is spelled differently. The vectors come from the Hugging Face library
// (tools/make_tokenizer_vectors.py).
#include "stretto/model/tokenizer/tokenizer.h"

#include <gtest/gtest.h>

#include <random>
#include <thread>

#include "stretto/base/errors.h"
#include "stretto/base/json.h"
#include "stretto/base/test_seed.h"
#include "stretto/model/tokenizer/utf8.h"

namespace stretto {
namespace {

const std::filesystem::path kData = "stretto/model/tokenizer/testdata";
const std::filesystem::path kCheckpoint = "checkpoints/debian-llama-8m";

std::string from_hex(const std::string& hex) {
  std::string bytes;
  for (std::size_t i = 0; i < hex.size(); i += 2) {
    bytes += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
  }
  return bytes;
}

std::string streamed(const Tokenizer& tokenizer, const std::vector<int>& ids, bool skip_special) {
  StreamDecoder stream(tokenizer, skip_special);
  std::string text;
  for (const int id : ids) text += stream.push(id);
  return text + stream.finish();
}

class Vectors : public testing::TestWithParam<const char*> {};

TEST_P(Vectors, EqualTheReference) {
  const Tokenizer tokenizer = Tokenizer::load(kData / GetParam());
  const Json vectors = read_json_file(kData / GetParam() / "vectors.json");
  ASSERT_GE(vectors.size(), 100u);
  for (const Json& vector : vectors) {
    SCOPED_TRACE(vector.dump());
    const std::string input = from_hex(vector["bytes"]);
    const std::vector<int> ids = vector["ids"];
    const std::string text = vector["text"];
    const std::string shown = vector.value("shown", text);
    EXPECT_EQ(tokenizer.encode(input), ids);
    EXPECT_EQ(tokenizer.encode(input, {.add_special_tokens = false}), vector.value("plain", ids));
    EXPECT_EQ(tokenizer.encode(input, {.split_special_tokens = true}), vector.value("split", ids));
    if (tokenization::is_valid_utf8(input)) {
      // All of it, as two ranges or one, and none of it.
      const auto size = input.size();
      EXPECT_EQ(tokenizer.encode(input, {.plain_ranges = {{0, size}}}), vector.value("split", ids));
      EXPECT_EQ(tokenizer.encode(input, {.plain_ranges = {{0, 0}, {size, size}}}), ids);
    }
    EXPECT_EQ(tokenizer.decode(ids), text);
    EXPECT_EQ(tokenizer.decode(ids, false), shown);
    EXPECT_EQ(streamed(tokenizer, ids, true), text);
    EXPECT_EQ(streamed(tokenizer, ids, false), shown);
  }
}

INSTANTIATE_TEST_SUITE_P(Styles, Vectors,
                         testing::Values("gpt2", "llama3", "qwen2", "metaspace", "unigram", "bert"),
                         [](const auto& info) { return std::string(info.param); });

// A prompt that would fit is refused where this bound is too low.
TEST(MostTextOfAToken, HoldsForAllTexts) {
  const std::uint64_t seed = test_seed();
  SCOPED_TRACE("STRETTO_TEST_SEED=" + std::to_string(seed));
  std::mt19937_64 random(seed);
  int num_bounds = 0;
  for (const char* style : {"gpt2", "llama3", "qwen2", "metaspace", "unigram", "bert"}) {
    SCOPED_TRACE(style);
    const Tokenizer tokenizer = Tokenizer::load(kData / style);
    const auto most = tokenizer.most_text_of_a_token();
    // Words that are not known are one token each, however long; spaces are left out.
    if (std::string_view(style) == "bert") {
      EXPECT_FALSE(most);
    }
    if (!most) continue;
    ++num_bounds;
    auto check = [&](const std::string& text) {
      const auto ids = tokenizer.encode(text, {.add_special_tokens = false});
      EXPECT_LE(text.size(), ids.size() * *most);
    };
    for (const Json& vector : read_json_file(kData / style / "vectors.json")) {
      check(from_hex(vector["bytes"]));
    }
    std::vector<std::string> tokens = tokenizer.token_bytes();
    for (const std::string& token : tokens) {
      std::string text;
      for (int i = 0; i < 20; ++i) text += token;
      check(text);
    }
    for (int i = 0; i < 200; ++i) {
      std::string text;
      while (text.size() < 500) text += tokens[random() % tokens.size()];
      check(text);
    }
    // What NFC makes shorter more than anything else.
    std::string text;
    for (int i = 0; i < 100; ++i) text += "\u1fbe\u0308\u0301";
    check(text);
  }
  EXPECT_GE(num_bounds, 2);
}

// What a user writes between a template's special tokens, whatever it spells.
TEST(PlainRanges, HoldNoSpecialTokens) {
  const Tokenizer tokenizer = Tokenizer::load(kData / "llama3");
  const std::string special = "<|eot_id|>";
  const int id = tokenizer.token_to_id(special).value();
  for (const std::string& user :
       {special, "a" + special, std::string("<|eot"), special + special}) {
    const std::string text = special + user + "_id|>" + special;
    const auto ids =
        tokenizer.encode(text, {.add_special_tokens = false,
                                .plain_ranges = {{special.size(), special.size() + user.size()}}});
    EXPECT_EQ(std::count(ids.begin(), ids.end(), id), 2) << text;
    EXPECT_EQ(ids.front(), id);
    EXPECT_EQ(ids.back(), id);
    EXPECT_EQ(tokenizer.decode(ids, false), text);
  }
}

TEST(Checkpoint, GoldenPromptsAndContinuations) {
  const Tokenizer tokenizer = Tokenizer::load(kCheckpoint);
  const Json golden = read_json_file(kCheckpoint / "golden.json");
  ASSERT_FALSE(golden["prompts"].empty());
  for (const Json& prompt : golden["prompts"]) {
    const std::vector<int> greedy = prompt["greedy_ids"];
    EXPECT_EQ(tokenizer.encode(prompt["text"].get<std::string>()),
              prompt["ids"].get<std::vector<int>>());
    EXPECT_EQ(tokenizer.decode(greedy, false), prompt["greedy_text"].get<std::string>());
    EXPECT_EQ(streamed(tokenizer, greedy, false), prompt["greedy_text"].get<std::string>());
  }
  EXPECT_EQ(tokenizer.vocab_size(), 4096);
  EXPECT_EQ(tokenizer.bos_id(), 0);
  EXPECT_EQ(tokenizer.eos_id(), 1);
  EXPECT_EQ(tokenizer.pad_id(), std::nullopt);
}

// A seed that is refused at its first field leads a fuzzer nowhere.
TEST(FuzzSeeds, AreTokenizers) {
  for (const auto& entry : std::filesystem::directory_iterator(kData / "tokenizer_fuzz")) {
    SCOPED_TRACE(entry.path());
    const std::string bytes = read_file(entry.path(), 1 << 16);
    const std::size_t end = bytes.find('\0'), text_end = bytes.find('\0', end + 1);
    ASSERT_NE(end, bytes.npos);
    std::optional<std::string> config;
    if (text_end != bytes.npos) config = bytes.substr(text_end + 1);
    const auto tokenizer = Tokenizer::parse(bytes.substr(0, end), config, "seed");
    EXPECT_FALSE(tokenizer.encode(bytes.substr(end + 1, text_end - end - 1)).empty());
  }
}

TEST(Tokenizer, LooksUpTokens) {
  const Tokenizer tokenizer = Tokenizer::load(kData / "llama3");
  const auto id = tokenizer.token_to_id("<|eot_id|>");
  ASSERT_TRUE(id.has_value());
  EXPECT_EQ(tokenizer.id_to_token(*id), "<|eot_id|>");
  EXPECT_EQ(tokenizer.eos_id(), id);  // written as an object in tokenizer_config.json
  EXPECT_TRUE(tokenizer.is_special(*id));
  EXPECT_FALSE(tokenizer.is_special(*tokenizer.token_to_id("a")));
  EXPECT_EQ(tokenizer.id_limit(), tokenizer.vocab_size());
  EXPECT_EQ(tokenizer.token_to_id("no such token"), std::nullopt);
  EXPECT_EQ(tokenizer.id_to_token(-1), std::nullopt);
  EXPECT_EQ(tokenizer.id_to_token(tokenizer.id_limit()), std::nullopt);
}

TEST(Tokenizer, IdsWithoutTokenStandForNothing) {
  const Tokenizer tokenizer = Tokenizer::load(kData / "gpt2");
  const std::vector<int> ids{*tokenizer.token_to_id("a"), tokenizer.id_limit() + 7,
                             *tokenizer.token_to_id("b")};
  EXPECT_EQ(tokenizer.decode(ids), "ab");
  EXPECT_EQ(streamed(tokenizer, ids, true), "ab");
  EXPECT_THROW(tokenizer.decode(std::vector<int>{-1}), UserError);
}

std::string random_text(std::mt19937_64& random, std::size_t length) {
  const std::vector<std::string> parts{"a",  " ", "the",        "É",         "字", "😀",
                                       "\n", "7", "<|im_end|>", "e\xCC\x81", "'s"};
  std::string text;
  while (text.size() < length) text += parts[random() % parts.size()];
  return text;
}

TEST(Tokenizer, DecodingGivesTheTextBack) {
  const std::uint64_t seed = test_seed();
  SCOPED_TRACE("STRETTO_TEST_SEED=" + std::to_string(seed));
  std::mt19937_64 random(seed);
  const Tokenizer gpt2 = Tokenizer::load(kData / "gpt2");
  const Tokenizer llama3 = Tokenizer::load(kData / "llama3");
  for (int i = 0; i < 200; ++i) {
    const std::string text = random_text(random, random() % 300);
    EXPECT_EQ(gpt2.decode(gpt2.encode(text)), text);
    EXPECT_EQ(llama3.decode(llama3.encode(text)), text);
  }
}

TEST(Tokenizer, StreamsWholeCodePointsOnly) {
  const Tokenizer tokenizer = Tokenizer::load(kData / "gpt2");
  StreamDecoder stream(tokenizer);
  const auto ids = tokenizer.encode("\xF0\x9F\xAB\xA0!");  // U+1FAE0
  ASSERT_GE(ids.size(), 3u) << "the vocabulary must not hold this character whole";
  for (std::size_t i = 0; i + 2 < ids.size(); ++i) EXPECT_EQ(stream.push(ids[i]), "");
  EXPECT_EQ(stream.push(ids[ids.size() - 2]), "\xF0\x9F\xAB\xA0");
  EXPECT_EQ(stream.push(ids.back()), "!");
  EXPECT_EQ(stream.push(*tokenizer.token_to_id("ð")),
            "");  // the byte F0, of a code point that never ends
  EXPECT_EQ(stream.finish(), "\xEF\xBF\xBD");
  EXPECT_EQ(stream.push(*tokenizer.token_to_id("a")), "a") << "finish() must leave nothing behind";
}

TEST(Tokenizer, SharedBetweenThreads) {
  const std::uint64_t seed = test_seed();
  SCOPED_TRACE("STRETTO_TEST_SEED=" + std::to_string(seed));
  const Tokenizer tokenizer = Tokenizer::load(kData / "qwen2");
  std::mt19937_64 random(seed);
  std::vector<std::string> texts;
  std::vector<std::vector<int>> expected;
  for (int i = 0; i < 50; ++i) {
    texts.push_back(random_text(random, 200));
    expected.push_back(Tokenizer::load(kData / "qwen2").encode(texts.back()));
  }
  std::vector<int> wrong(4, 0);
  std::vector<std::thread> threads;
  for (int& count : wrong) {
    threads.emplace_back([&] {
      for (std::size_t i = 0; i < texts.size(); ++i)
        count += tokenizer.encode(texts[i]) != expected[i];
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, std::vector<int>(4, 0));
}

// A merge of quadratic cost, or an expression that backtracks over the line at each character,
// would take minutes.
TEST(Tokenizer, LongLines) {
  for (const char* style : {"gpt2", "llama3", "qwen2"}) {
    const Tokenizer tokenizer = Tokenizer::load(kData / style);
    for (const char* unit : {"a", " ", "\n", "\xCC\x81\xCC\xA3", "字", "=", "1"}) {
      std::string text;
      while (text.size() < (1 << 17)) text += unit;
      const auto ids = tokenizer.encode(text, {.add_special_tokens = false});
      EXPECT_GE(tokenizer.decode(ids).size(), text.size() / 2) << style << " " << unit;
    }
  }
}

}  // namespace
}  // namespace stretto
