// What a user would lose: calls that come as text, text that is lost, and tags in either.
#include "stretto/server/chat_output.h"

#include <gtest/gtest.h>

#include <random>

#include "stretto/base/test_seed.h"

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
  for (const Case& one : cases()) {
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

}  // namespace
}  // namespace stretto
