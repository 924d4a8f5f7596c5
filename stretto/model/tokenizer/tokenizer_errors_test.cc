// What a user loses when these fail: a broken tokenizer file crashes the program or, worse, loads
// and gives wrong ids.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <functional>

#include "stretto/base/json.h"
#include "stretto/base/test_errors.h"
#include "stretto/model/tokenizer/tokenizer.h"

namespace stretto {
namespace {

Json small_tokenizer() {
  return Json::parse(R"({
    "version": "1.0",
    "added_tokens": [{"id": 4, "content": "<s>", "special": true}],
    "normalizer": {"type": "NFC"},
    "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false},
    "post_processor": {"type": "TemplateProcessing",
      "single": [{"SpecialToken": {"id": "<s>"}}, {"Sequence": {"id": "A"}}],
      "pair": [{"Sequence": {"id": "A"}}, {"Sequence": {"id": "B"}}],
      "special_tokens": {"<s>": {"id": "<s>", "ids": [4], "tokens": ["<s>"]}}},
    "decoder": {"type": "ByteLevel"},
    "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2, "aba": 3},
      "merges": [["a", "b"], "ab a"]}
  })");
}

Tokenizer parse(const Json& json) { return Tokenizer::parse(json.dump(), std::nullopt, "DIR"); }

// Changes the value at `pointer`, or removes it when `value` is discarded, and expects a refusal
// that names `parts`.
void expect_refused(const char* pointer, const Json& value, const std::vector<std::string>& parts) {
  SCOPED_TRACE(pointer);
  Json json = small_tokenizer();
  const Json::json_pointer at(pointer);
  if (value.is_discarded()) {
    json[at.parent_pointer()].erase(at.back());
  } else {
    json[at] = value;
  }
  expect_user_error([&] { parse(json); }, parts);
}

const Json kRemoved(Json::value_t::discarded);

TEST(TokenizerErrors, TheUnchangedFileLoads) {
  const Tokenizer tokenizer = parse(small_tokenizer());
  EXPECT_EQ(tokenizer.encode("aba"), (std::vector<int>{4, 3}));
  EXPECT_EQ(tokenizer.encode("abxba", {.add_special_tokens = false}), (std::vector<int>{2, 1, 0}));
}

TEST(TokenizerErrors, MissingOrWrongFields) {
  expect_refused("/model", kRemoved, {"DIR/tokenizer.json: model", "missing"});
  expect_refused("/model/vocab", kRemoved, {"model.vocab", "missing"});
  expect_refused("/model/merges", kRemoved, {"model.merges", "missing"});
  expect_refused("/model/merges", "ab", {"model.merges", "array"});
  expect_refused("/model/vocab", Json::array(), {"model.vocab", "object"});
  expect_refused("/model/type", "CharLevel", {"model.type", "CharLevel", "'Unigram'"});
  expect_refused("/model/dropout", 0.5, {"model.dropout"});
  expect_refused("/model/byte_fallback", 1, {"model.byte_fallback", "true or false"});
  expect_refused("/model/unk_token", 3, {"model.unk_token", "string"});
  expect_refused("/version", "2.0", {"version", "2.0"});
  expect_refused("/added_tokens", 7, {"added_tokens", "array"});
}

TEST(TokenizerErrors, MergesOfUnknownTokens) {
  expect_refused("/model/merges/1", Json::array({"ab", "c"}),
                 {"model.merges[1]", "'c'", "vocabulary"});
  expect_refused("/model/merges/1", "b a", {"model.merges[1]", "'ba'"});
  expect_refused("/model/merges/0", "a b b", {"model.merges[0]", "space"});
  expect_refused("/model/merges/0", Json::array({"a", "b", "a"}),
                 {"model.merges[0]", "two strings"});
  expect_refused("/model/merges/0", 4, {"model.merges[0]", "two strings"});
}

TEST(TokenizerErrors, Ids) {
  expect_refused("/model/vocab/a", 1, {"model.vocab", "'a'", "'b'", "same id 1"});
  expect_refused("/model/vocab/a", -1, {"model.vocab", "'a'"});
  expect_refused("/model/vocab/a", 1.5, {"model.vocab", "'a'"});
  expect_refused("/model/vocab/a", 4000000000u, {"model.vocab", "'a'"});
  expect_refused("/added_tokens/0/id", 9, {"added_tokens[0].id", "'<s>'", "9"});
  expect_refused("/added_tokens/0/id", "4", {"added_tokens[0].id", "integer"});
  expect_refused("/added_tokens/0/content", kRemoved, {"added_tokens[0].content", "missing"});
}

TEST(TokenizerErrors, TokensThatAreListedTwice) {
  Json json = small_tokenizer();
  json["added_tokens"].push_back(json["added_tokens"][0]);
  EXPECT_EQ(parse(json).encode("a<s>"), parse(small_tokenizer()).encode("a<s>"));
  Json entry = json["added_tokens"][0];
  entry["id"] = 5;
  expect_refused("/added_tokens/1", entry, {"added_tokens[1]", "'<s>'", "twice, and differently"});
  entry["id"] = 4;
  entry["rstrip"] = true;
  expect_refused("/added_tokens/1", entry, {"added_tokens[1]", "'<s>'", "twice, and differently"});
}

TEST(TokenizerErrors, UnknownComponents) {
  expect_refused("/normalizer/type", "Odd", {"normalizer.type", "Odd"});
  expect_refused("/pre_tokenizer/type", "Odd", {"pre_tokenizer.type", "Odd"});
  expect_refused("/post_processor/type", "Odd", {"post_processor.type", "Odd"});
  expect_refused("/decoder/type", "Odd", {"decoder.type", "Odd"});
  expect_refused("/decoder", Json::object(), {"decoder.type", "missing"});
  expect_refused("/pre_tokenizer",
                 Json::parse(R"({"type":"Split","pattern":{"Regex":"("},"behavior":"Isolated"})"),
                 {"pre_tokenizer.pattern.Regex"});
  expect_refused("/pre_tokenizer",
                 Json::parse(R"({"type":"Split","pattern":{"String":"a"},"behavior":"Odd"})"),
                 {"pre_tokenizer.behavior", "Odd"});
  expect_refused("/pre_tokenizer",
                 Json::parse(R"({"type":"Sequence","pretokenizers":[{"type":"No\nSuch"}]})"),
                 {"pre_tokenizer.pretokenizers[0].type", "No\\x0aSuch"});
}

TEST(TokenizerErrors, ComponentsOfOtherFamilies) {
  const auto refused = [](const char* field, const char* json, std::vector<std::string> says) {
    SCOPED_TRACE(json);
    expect_refused(field, Json::parse(json), says);
  };
  refused("/pre_tokenizer", R"({"type":"Metaspace"})", {"pre_tokenizer.replacement", "missing"});
  refused("/pre_tokenizer", R"({"type":"Metaspace","replacement":"ab"})", {"replacement", "one"});
  refused("/pre_tokenizer", R"({"type":"Metaspace","replacement":"_","prepend_scheme":"odd"})",
          {"pre_tokenizer.prepend_scheme", "odd"});
  refused("/pre_tokenizer",
          R"({"type":"Metaspace","replacement":"_","prepend_scheme":"first",
              "add_prefix_space":false})",
          {"pre_tokenizer.prepend_scheme", "add_prefix_space"});
  refused("/pre_tokenizer", R"({"type":"Punctuation","behavior":"Odd"})", {"behavior", "Odd"});
  refused("/pre_tokenizer", R"({"type":"CharDelimiterSplit","delimiter":""})", {"delimiter"});
  refused("/post_processor", R"({"type":"BertProcessing","sep":["a",0]})", {"cls", "missing"});
  refused("/post_processor", R"({"type":"BertProcessing","sep":["a",99],"cls":["a",0]})",
          {"post_processor.sep[1]", "id"});
  refused("/decoder", R"({"type":"BPEDecoder","suffix":""})", {"decoder.suffix", "empty"});
  for (const char* map : {"", "A", "AAAA", "/////w==", "BAAAAAAAAAA*", "CAAAAAAAAAA="}) {
    refused("/normalizer",
            fmt::format(R"({{"type":"Precompiled","precompiled_charsmap":"{}"}})", map).c_str(),
            {"normalizer.precompiled_charsmap"});
  }
  refused("/model", R"({"type":"Unigram","vocab":{"a":0}})", {"model.vocab", "list"});
  refused("/model", R"({"type":"Unigram","vocab":[["a",0],["b"]]})", {"model.vocab[1]", "score"});
  refused("/model", R"({"type":"Unigram","vocab":[["a",0]],"unk_id":1})", {"model.unk_id"});
  refused("/model", R"({"type":"WordPiece","vocab":[]})", {"model.vocab", "object"});
}

TEST(TokenizerErrors, UnknownPartsWithoutTheirToken) {
  for (const char* model :
       {R"({"type":"Unigram","vocab":[["a",0]]})", R"({"type":"WordPiece","vocab":{"a":0}})",
        R"({"type":"WordLevel","vocab":{"a":0}})"}) {
    SCOPED_TRACE(model);
    const auto tokenizer =
        Tokenizer::parse(fmt::format(R"({{"model":{}}})", model), std::nullopt, "DIR");
    EXPECT_EQ(tokenizer.encode("a"), std::vector<int>{0});
    expect_user_error([&] { tokenizer.encode("x"); }, {"DIR/tokenizer.json: model.unk_"});
  }
}

TEST(TokenizerErrors, TemplatesThatCannotBeFilled) {
  expect_refused("/post_processor/special_tokens", Json::object(),
                 {"special_tokens.<s>", "missing"});
  expect_refused("/post_processor/special_tokens/<s>/ids/0", 77, {"special_tokens.<s>.ids[0]"});
  expect_refused("/post_processor/single/1/Sequence/id", "B", {"post_processor.single"});
}

TEST(TokenizerErrors, NotEvenJson) {
  expect_user_error([] { Tokenizer::parse("{", std::nullopt, "DIR"); }, {"DIR/tokenizer.json"});
  expect_user_error([] { Tokenizer::parse("[]", std::nullopt, "DIR"); },
                    {"DIR/tokenizer.json", "object"});
  expect_user_error([] { Tokenizer::parse("{\"model\": \"\xFF\"}", std::nullopt, "DIR"); },
                    {"DIR/tokenizer.json"});
  const std::string deep = std::string(100000, '[') + std::string(100000, ']');
  expect_user_error([&] { Tokenizer::parse(deep, std::nullopt, "DIR"); },
                    {"DIR/tokenizer.json", "nested"});
  expect_user_error([] { Tokenizer::parse(small_tokenizer().dump(), "{\"bos_token\": 3}", "DIR"); },
                    {"DIR/tokenizer_config.json: bos_token", "string"});
  expect_user_error([] { Tokenizer::load("/dev/null/model"); },
                    {"/dev/null/model: is not a readable"});
}

TEST(TokenizerErrors, UnknownCharacterWithoutItsToken) {
  Json json = small_tokenizer();
  json["model"]["unk_token"] = "<unk>";
  const Tokenizer tokenizer = parse(json);
  EXPECT_EQ(tokenizer.encode("ab", {.add_special_tokens = false}), (std::vector<int>{2}));
  expect_user_error([&] { tokenizer.encode("x"); },
                    {"DIR/tokenizer.json: model.unk_token", "<unk>"});
}

}  // namespace
}  // namespace stretto
