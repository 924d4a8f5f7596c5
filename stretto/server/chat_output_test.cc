// What a user would lose: calls that come as text, text that is lost, and tags in either.
#include "stretto/server/chat_output.h"

#include <gtest/gtest.h>

#include <functional>
#include <random>

#include "stretto/base/json.h"
#include "stretto/base/test_seed.h"
#include "stretto/server/grammar/constraint.h"

namespace stretto {
namespace {

struct Case {
  const char* name;
  ChatOutput::Options options;
  std::string text;
  std::string reasoning, content;
  std::vector<std::pair<std::string, std::string>> calls;
};

constexpr ChatOutput::Options kHermes{.tools = ToolFormat::kHermes, .has_reasoning = true};
constexpr ChatOutput::Options kLlama{.tools = ToolFormat::kLlama3};
constexpr ChatOutput::Options kMistral{.tools = ToolFormat::kMistral};

const std::vector<Case>& cases() {
  static const std::vector<Case> all = {
      {"plain", kHermes, "Hello <b> there.\n", "", "Hello <b> there.\n", {}},
      {"plain without tools",
       {},
       "<tool_call>{}</tool_call> <think>",
       "",
       "<tool_call>{}</tool_call> <think>",
       {}},
      {"reasoning", kHermes, "<think>\nHm.\n\nSo.\n</think>\n\nYes.", "Hm.\n\nSo.", "Yes.", {}},
      {"empty reasoning", kHermes, "<think>\n\n</think>\n\nYes.", "", "Yes.", {}},
      {"opened by the prompt",
       {.has_reasoning = true, .begins_in_reasoning = true},
       "Hm </thin.</think> Yes",
       "Hm </thin.",
       "Yes",
       {}},
      {"reasoning without end", kHermes, "<think>Hm.\n", "Hm.\n", "", {}},
      {"hermes",
       kHermes,
       "I look.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"b\": 1, \"a\": "
       "\"}</x\"}}\n</tool_call>\n",
       "",
       "I look.",
       {{"f", "{\"b\": 1, \"a\": \"}</x\"}"}}},
      {"hermes, two and reasoning",
       kHermes,
       "<think>a</think><tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>\n"
       "<tool_call>{\"name\": \"g\"}</tool_call>",
       "a",
       "",
       {{"f", "{}"}, {"g", "{}"}}},
      {"hermes without end",
       kHermes,
       "<tool_call>{\"name\": \"f\", \"arguments\": {}}",
       "",
       "",
       {{"f", "{}"}}},
      {"hermes that is none",
       kHermes,
       "x <tool_call>{\"name\": 3}</tool_call> y",
       "",
       "x <tool_call>{\"name\": 3}</tool_call> y",
       {}},
      {"hermes cut off", kHermes, "<tool_call>{\"name\": \"f", "", "<tool_call>{\"name\": \"f", {}},
      {"llama",
       kLlama,
       "{\"name\": \"f\", \"parameters\": {\"x\": [1, {}]}}",
       "",
       "",
       {{"f", "{\"x\": [1, {}]}"}}},
      {"llama, two behind the tag",
       kLlama,
       "<|python_tag|>{\"name\": \"f\", \"parameters\": {}}; {\"name\": \"g\", \"parameters\": "
       "{\"a\": \";\"}}",
       "",
       "",
       {{"f", "{}"}, {"g", "{\"a\": \";\"}"}}},
      {"llama, other json", kLlama, " {\"a\": 1}", "", " {\"a\": 1}", {}},
      {"llama, text",
       kLlama,
       "It is {\"name\": \"f\"} <|pyth",
       "",
       "It is {\"name\": \"f\"} <|pyth",
       {}},
      {"mistral",
       kMistral,
       "[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {\"x\": \"]\"}}, {\"name\": \"g\", "
       "\"arguments\": {}}]",
       "",
       "",
       {{"f", "{\"x\": \"]\"}"}, {"g", "{}"}}},
      {"mistral, by name",
       kMistral,
       "Well. [TOOL_CALLS]f[ARGS]{\"x\": 1}[TOOL_CALLS]g{\"y\": 2}",
       "",
       "Well.",
       {{"f", "{\"x\": 1}"}, {"g", "{\"y\": 2}"}}},
      {"mistral, none", kMistral, "[TOOL_CALLS][{\"nam", "", "[TOOL_CALLS][{\"nam", {}},
  };
  return all;
}

// Forms that models are not asked for, and write.
const std::vector<Case>& odd_cases() {
  static const std::vector<Case> all = {
      {"hermes, other fields and orders",
       kHermes,
       "<tool_call>{\"id\": [\"}\"], \"arguments\": {\"a\": 1}, \"name\": \"f\"}</tool_call>\n"
       "<tool_call>{\"n\": -1e+5, \"name\": \"\\u0067\", \"parameters\": {\"b\": {}}, \"id\": "
       "\"7\"}</tool_call> So.",
       "",
       " So.",
       {{"f", "{\"a\": 1}"}, {"g", "{\"b\": {}}"}}},
      {"hermes, arguments as text",
       kHermes,
       "<tool_call>{\"name\": \"f\", \"arguments\": \"{\\\"a\\\": 1}\"}</tool_call>",
       "",
       "",
       {{"f", "{\"a\": 1}"}}},
      {"hermes, tags in arguments",
       kHermes,
       "<tool_call>{\"name\": \"f\", \"arguments\": {\"x\": \"</tool_call>\\\"<tool_call>\"}}"
       "</tool_call>",
       "",
       "",
       {{"f", "{\"x\": \"</tool_call>\\\"<tool_call>\"}"}}},
      {"hermes without braces",
       kHermes,
       "<tool_call>{\"name\": \"f\", \"arguments\": {\"x\": [1</tool_call> So.",
       "",
       " So.",
       {{"f", "{\"x\": [1"}}},
      {"hermes, two in one",
       kHermes,
       "<tool_call>{\"name\": \"f\", \"arguments\": {}}\n{\"name\": \"g\", \"arguments\": {}}\n"
       "</tool_call>",
       "",
       "",
       {{"f", "{}"}, {"g", "{}"}}},
      {"hermes, a tag in a tag",
       kHermes,
       "<tool_call><tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>",
       "",
       "<tool_call>",
       {{"f", "{}"}}},
      {"hermes, a text that does not end",
       kHermes,
       "<tool_call>{\"name</tool_call> \"a\" <tool_call>{\"name\": \"f\"}</tool_call>",
       "",
       "<tool_call>{\"name</tool_call> \"a\"",
       {{"f", "{}"}}},
      {"llama, words after a call",
       kLlama,
       "{\"type\": \"function\", \"name\": \"f\", \"parameters\": {\"a\": null}} So.",
       "",
       " So.",
       {{"f", "{\"a\": null}"}}},
      {"llama, python", kLlama, "<|python_tag|>print(1)", "", "<|python_tag|>print(1)", {}},
      {"mistral, ids",
       kMistral,
       "[TOOL_CALLS] [{\"name\": \"f\", \"arguments\": {}, \"id\": \"abcdefghi\"}] So.",
       "",
       " So.",
       {{"f", "{}"}}},
  };
  return all;
}

void expect(const Case& wanted, const ChatDelta& got) {
  EXPECT_EQ(got.reasoning, wanted.reasoning);
  EXPECT_EQ(got.content, wanted.content);
  std::vector<std::pair<std::string, std::string>> calls;
  for (const ToolCall& call : got.calls) calls.emplace_back(call.name, call.arguments);
  EXPECT_EQ(calls, wanted.calls);
}

TEST(ChatOutput, IsTheSameHoweverItComes) {
  const auto seed = test_seed();
  SCOPED_TRACE(seed);
  std::mt19937_64 random(seed);
  std::vector<Case> all = cases();
  all.insert(all.end(), odd_cases().begin(), odd_cases().end());
  for (const Case& one : all) {
    SCOPED_TRACE(one.name);
    for (int run = 0; run < 40; ++run) {
      ChatOutput output(one.options);
      ChatDelta whole;
      for (std::size_t at = 0; at < one.text.size();) {
        // All at once, byte by byte, or pieces by lot.
        std::size_t size = run == 0 ? one.text.size() : run == 1 ? 1 : 1 + random() % 12;
        whole.add(output.push(std::string_view(one.text).substr(at, size)));
        at += size;
      }
      whole.add(output.finish());
      expect(one, whole);
    }
  }
}

TEST(ChatOutput, HoldsBackNoMoreThanATag) {
  ChatOutput output(kHermes);
  EXPECT_EQ(output.push("Hello").content, "Hello");
  EXPECT_EQ(output.push(" <tool").content, "");
  EXPECT_EQ(output.push("s> x").content, " <tools> x");
  ChatOutput thinking({.has_reasoning = true});
  EXPECT_EQ(thinking.push("<thi").content, "");
  EXPECT_EQ(thinking.push("nk>Hm").reasoning, "Hm");
  EXPECT_TRUE(thinking.in_reasoning());
}

TEST(ChatOutput, ArgumentsComeWhileTheyAreWritten) {
  const std::string arguments = R"({"city": "Z\"ürich", "days": [1, 2, {"x": "}"}]})";
  const std::string fields = R"({"name": "f", "arguments": )" + arguments + "}";
  const std::vector<std::pair<ToolFormat, std::string>> all = {
      {ToolFormat::kHermes, "<tool_call>\n" + fields + "\n</tool_call>"},
      {ToolFormat::kLlama3, fields},
      {ToolFormat::kMistral, "[TOOL_CALLS][" + fields + "]"},
      {ToolFormat::kMistral, "[TOOL_CALLS]f[ARGS]" + arguments}};
  for (const auto& [format, text] : all) {
    SCOPED_TRACE(text);
    ChatOutput output({.tools = format});
    const std::size_t begin = text.find(arguments);
    std::string got;
    for (std::size_t i = 0; i < text.size(); ++i) {
      const ChatDelta delta = output.push(text.substr(i, 1));
      EXPECT_EQ(delta.content, "");
      const bool is_in = i >= begin && i < begin + arguments.size();
      ASSERT_EQ(delta.calls.size(), is_in ? 1U : 0U) << i;
      if (!is_in) continue;
      EXPECT_EQ(delta.calls[0].goes_on, i > begin);
      EXPECT_EQ(delta.calls[0].name, i > begin ? "" : "f");
      got += delta.calls[0].arguments;
    }
    EXPECT_EQ(got, arguments);
    EXPECT_TRUE(output.finish().empty());
  }
}

// Where the limit of tokens ends an answer amid calls, clients would show what is left of the tags.
TEST(ChatOutput, WhatIsCutOffAmidCallsIsNoContent) {
  const std::string a = R"({"x": "}"})", b = R"({"y": [1]})";
  const auto object = [](const std::string& name, const std::string& field,
                         const std::string& value) {
    return "{\"name\": \"" + name + "\", \"" + field + "\": " + value + "}";
  };
  const std::string f = object("f", "arguments", a), g = object("g", "arguments", b);
  const std::vector<std::pair<ToolFormat, std::string>> all = {
      {ToolFormat::kHermes,
       "<tool_call>\n" + f + "\n</tool_call>\n<tool_call>\n" + g + "\n</tool_call>"},
      {ToolFormat::kLlama3, object("f", "parameters", a) + "; " + object("g", "parameters", b)},
      {ToolFormat::kMistral, "[TOOL_CALLS][" + f + ", " + g + "]"},
      {ToolFormat::kMistral, "[TOOL_CALLS]f[ARGS]" + a + "[TOOL_CALLS]g[ARGS]" + b}};
  for (const auto& [format, text] : all) {
    const std::size_t first = text.find(a), second = text.find(b);
    // Where the second call begins.
    const std::size_t again =
        text.find_first_of("<{[", text.find_first_not_of("}\n", first + a.size()) +
                                      (format == ToolFormat::kHermes ? 1 : 0));
    for (std::size_t size = 0; size <= text.size(); ++size) {
      SCOPED_TRACE(text.substr(0, size));
      for (bool must_call : {false, true}) {
        ChatOutput output({.tools = format, .must_call = must_call});
        ChatDelta whole;
        for (std::size_t i = 0; i < size; ++i) whole.add(output.push(text.substr(i, 1)));
        whole.add(output.finish());
        ASSERT_EQ(whole.calls.size(), (size > first ? 1U : 0U) + (size > second ? 1U : 0U));
        const bool is_told = (size > first && size <= again) || size > second;
        if (is_told || must_call) {
          ASSERT_EQ(whole.content, "");
        }
        if (size > first) {
          const std::string got = whole.calls[0].arguments;
          ASSERT_EQ(got, a.substr(0, std::min(a.size(), size - first)));
        }
      }
    }
  }
}

TEST(ChatOutput, TakesCallsByLotApart) {
  const auto seed = test_seed();
  SCOPED_TRACE(seed);
  std::mt19937_64 random(seed);
  static const std::vector<std::string> kTexts = {
      "a", "}", "{",  "]", ",", "\"",    "\\", "</tool_call>", "[TOOL_CALLS]", "<|python_tag|>",
      ";", "ü", "\n", ":", " ", "[ARGS]"};
  auto text = [&] {
    std::string out;
    for (std::size_t i = random() % 6; i > 0; --i) out += kTexts[random() % kTexts.size()];
    return out;
  };
  std::function<Json(int)> value = [&](int depth) -> Json {
    switch (random() % (depth > 0 ? 6 : 4)) {
      case 0:
        return text();
      case 1:
        return static_cast<int>(random() % 1000) - 500;
      case 2:
        return random() % 2 == 0;
      case 3:
        return nullptr;
      case 4:
        return Json::array({value(depth - 1), value(depth - 1)});
      default:
        return {{"k" + text(), value(depth - 1)}, {"arguments", value(depth - 1)}};
    }
  };
  for (int run = 0; run < 2000; ++run) {
    const bool is_spaced = random() % 2 == 0;
    std::vector<std::pair<std::string, std::string>> want;
    std::vector<std::string> objects, named;
    for (std::size_t i = 1 + random() % 3; i > 0; --i) {
      Json arguments = {{"x", value(3)}};
      Json call = {{"name", "f" + std::to_string(i)}};
      const std::string written = arguments.dump(is_spaced ? 2 : -1);
      want.emplace_back(call["name"], written);
      objects.push_back("{\"name\": " + call["name"].dump() + ", \"arguments\":" + written + "}");
      named.push_back("[TOOL_CALLS]" + want.back().first + (i % 2 == 0 ? "[ARGS]" : "") + written);
    }
    auto joined = [](const std::vector<std::string>& all, const std::string& before,
                     const std::string& between, const std::string& after) {
      std::string out;
      for (const std::string& one : all) out += (out.empty() ? before : between) + one;
      return out + after;
    };
    const std::vector<std::pair<ToolFormat, std::string>> forms = {
        {ToolFormat::kHermes,
         joined(objects, "<tool_call>\n", "\n</tool_call>\n<tool_call>\n", "\n</tool_call>")},
        {ToolFormat::kLlama3, joined(objects, "", "; ", "")},
        {ToolFormat::kMistral, joined(objects, "[TOOL_CALLS][", ", ", "]")},
        {ToolFormat::kMistral, joined(named, "", "", "")}};
    for (const auto& [format, form] : forms) {
      ChatOutput output({.tools = format});
      ChatDelta whole;
      for (std::size_t at = 0; at < form.size();) {
        const std::size_t size = 1 + random() % 9;
        whole.add(output.push(std::string_view(form).substr(at, size)));
        at += size;
      }
      whole.add(output.finish());
      expect({.name = "", .options = {}, .text = form, .calls = want}, whole);
    }
  }
}

TEST(ChatOutput, LosesNothingOfWhatIsNoCall) {
  const auto seed = test_seed();
  SCOPED_TRACE(seed);
  std::mt19937_64 random(seed);
  const std::vector<std::string> words = {"<tool_call>",
                                          "</tool_call>",
                                          "[TOOL_CALLS]",
                                          "[ARGS]",
                                          "{",
                                          "}",
                                          "[",
                                          "]",
                                          "\"",
                                          "name",
                                          "\\",
                                          ";",
                                          "<|python_tag|>",
                                          "<",
                                          " ",
                                          "x",
                                          ":",
                                          "\n"};
  for (int run = 0; run < 3000; ++run) {
    std::string text = "x";
    for (std::size_t i = random() % 12; i > 0; --i) text += words[random() % words.size()];
    for (ToolFormat format : {ToolFormat::kHermes, ToolFormat::kLlama3, ToolFormat::kMistral}) {
      ChatOutput output({.tools = format});
      ChatDelta whole;
      for (char c : text) whole.add(output.push({&c, 1}));
      whole.add(output.finish());
      if (!whole.calls.empty()) continue;
      EXPECT_EQ(whole.content, text);
    }
  }
}

// Free text in which calls are what strict tools want, with the tag as text or as one token.
class StrictCalls {
 public:
  explicit StrictCalls(ToolFormat format, bool names_arguments, bool only_one)
      : tag_(call_tag(format)), vocabulary_(tokens_of(tag_), kEnd + 1) {
    grammar::Asked asked{.kind = grammar::Asked::Kind::kFree};
    asked.calls = form_of_calls(format, names_arguments);
    asked.calls.only_one = only_one;
    asked.calls.tools = {
        {"go",
         {{"type", "object"}, {"required", {"n"}}, {"properties", {{"n", {{"enum", {1, 2}}}}}}}},
        {"any", grammar::any_object()}};
    grammar::Budget budget;
    made_ = std::make_shared<const grammar::Grammar>(grammar::rules_of(asked, vocabulary_, budget),
                                                     vocabulary_, budget);
  }

  // A random answer that likes calls, as text. The tag comes as a text, or as a token.
  std::string walk(std::mt19937_64& random, bool as_token) const {
    grammar::GrammarConstraint constraint(made_, {kEnd});
    std::vector<int> tokens;
    std::string out;
    while (tokens.size() < 200) {
      const auto bits = constraint.after(tokens).bits;
      std::vector<int> allowed, liked;
      for (int t = 0; t <= kEnd; ++t) {
        if ((bits[static_cast<std::size_t>(t) / 32] >> (t % 32) & 1) == 0) continue;
        if (as_token && t != kTag && t < kEnd && vocabulary_.token(t) == tag_) continue;
        allowed.push_back(t);
        if (t >= 256 && t < kEnd && (as_token || t != kTag)) liked.push_back(t);
      }
      const auto& from = !liked.empty() && random() % 2 == 0 ? liked : allowed;
      const int token = from[random() % from.size()];
      if (token == kEnd) break;
      tokens.push_back(token);
      out += token == kTag ? tag_ : std::string(vocabulary_.token(token));
    }
    return out;
  }

 private:
  static constexpr int kTag = 256, kEnd = 299;

  static std::vector<std::string> tokens_of(const std::string& tag) {
    std::vector<std::string> out;
    for (int byte = 0; byte < 255; ++byte) out.emplace_back(1, static_cast<char>(byte));
    out.emplace_back();
    out.push_back(grammar::special_text(tag));
    for (const char* more : {"\n", "{\"name\": \"", "go", "any", "n\":", " {", "}", "\"", "; ",
                             ";{", "[", "]", "[ARGS]", "</tool_call>", " ", "1", "{\"n\":1}}"}) {
      out.emplace_back(more);
    }
    out.push_back(tag);
    return out;
  }

  std::string tag_;
  grammar::Vocabulary vocabulary_;
  std::shared_ptr<const grammar::Grammar> made_;
};

TEST(ChatOutput, StrictToolsAreCalledAsTheySay) {
  const std::uint64_t seed = test_seed();
  SCOPED_TRACE(seed);
  std::mt19937_64 random(seed);
  struct Form {
    ToolFormat format;
    bool names_arguments;
  };
  for (const auto& [format, names_arguments] :
       {Form{ToolFormat::kHermes, false}, Form{ToolFormat::kLlama3, false},
        Form{ToolFormat::kMistral, false}, Form{ToolFormat::kMistral, true}}) {
    int num_calls = 0, num_plain = 0;
    for (int kind = 0; kind < 4; ++kind) {
      const bool only_one = kind < 2, as_token = kind % 2 == 0;
      const StrictCalls strict(format, names_arguments, only_one);
      const int calls_before = num_calls;
      for (int run = 0; run < 200; ++run) {
        const std::string text = strict.walk(random, as_token);
        ChatOutput output({.tools = format});
        ChatDelta whole = output.push(text);
        whole.add(output.finish());
        num_plain += whole.calls.empty();
        for (std::size_t i = 0; i < whole.calls.size(); ++i) {
          const ToolCall& call = whole.calls[i];
          ++num_calls;
          EXPECT_TRUE(call.name == "go" || call.name == "any") << text;
          // A name that comes twice in an object of no schema is JSON still.
          const Json arguments = Json::parse(call.arguments, nullptr, false);
          if (arguments.is_discarded()) {  // cut off
            EXPECT_EQ(i + 1, whole.calls.size()) << text;
            continue;
          }
          if (call.name != "go") continue;
          EXPECT_TRUE(arguments == Json({{"n", 1}}) || arguments == Json({{"n", 2}})) << text;
        }
        EXPECT_TRUE(!only_one || whole.calls.size() <= 1) << text;
      }
      EXPECT_GT(num_calls, calls_before + 20) << static_cast<int>(format) << " " << kind;
    }
    EXPECT_GT(num_plain, 10) << static_cast<int>(format);
  }
}

}  // namespace
}  // namespace stretto
