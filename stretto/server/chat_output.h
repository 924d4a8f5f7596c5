// What a chat model writes, taken apart while it comes: reasoning between tags, content, calls of
// tools (tool_call_reader.h). Text that may yet become a tag is held back.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "stretto/server/grammar/front.h"
#include "stretto/server/tool_call_reader.h"

namespace stretto {

// "hermes", "llama3" or "mistral"; nothing for other names.
std::optional<ToolFormat> tool_format_named(const std::string& name);
// By the tags that a chat template writes.
ToolFormat tool_format_of_template(const std::string& source);

// The same form, for an answer that has to have calls. `names_arguments`: Mistral's second one.
grammar::AskedCalls form_of_calls(ToolFormat format, bool names_arguments);

// In the order reasoning, content, calls.
struct ChatDelta {
  std::string reasoning, content;
  std::vector<ToolCall> calls;

  void add(const ChatDelta& more) {
    reasoning += more.reasoning;
    content += more.content;
    for (const ToolCall& call : more.calls) {
      if (call.goes_on && !calls.empty()) {
        calls.back().arguments += call.arguments;
      } else {
        calls.push_back(call);
      }
    }
  }
  bool empty() const { return reasoning.empty() && content.empty() && calls.empty(); }
};

class ChatOutput {
 public:
  struct Options {
    ToolFormat tools = ToolFormat::kNone;
    bool has_reasoning = false;        // <think> ... </think> is told apart
    bool begins_in_reasoning = false;  // the prompt has opened it
    bool must_call = false;            // there is no content: what is cut off is part of a call
  };
  explicit ChatOutput(const Options& options);

  // What is now certain. Text after a tag that turns out to be no call is content.
  ChatDelta push(std::string_view text);
  ChatDelta finish();
  bool in_reasoning() const { return state_ == State::kReasoning; }

 private:
  enum class State : std::uint8_t { kBegin, kReasoning, kAfterReasoning, kContent, kCall };

  ChatDelta step(bool is_end);
  bool step_begin(bool is_end);
  bool step_reasoning(ChatDelta& out, bool is_end);
  bool step_content(ChatDelta& out, bool is_end);
  bool step_call(ChatDelta& out, bool is_end);

  Options options_;
  State state_;
  bool has_content_ = false, has_calls_ = false;
  std::string held_;
  ToolCallReader reader_;
};

}  // namespace stretto
