// POST /v1/chat/completions as it was asked, every field checked.
// docs/guide/serving.md lists which are honoured, refused and ignored.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "stretto/model/checkpoint/generation_config.h"
#include "stretto/server/chat_template.h"
#include "stretto/server/request_fields.h"

namespace stretto {

struct ChatRequest {
  CompletionRequest completion;  // without its prompt, and max_tokens where it is not given
  std::optional<std::int64_t> max_tokens;
  ChatVariables variables;  // messages, tools, add_generation_prompt, ... for the template
  bool has_tools = false;   // that may be called
  bool parallel_tool_calls = true;
  std::vector<grammar::AskedCalls::Tool> tools;  // with has_tools
  bool only_one_call = false;                    // the first one counts
  bool must_call = false;                        // one of them
  bool has_strict_tools = false;                 // where it calls, calls are as `tools` say
  bool include_reasoning = true;
  bool continue_final_message = false;
  std::string last_text;      // of the final message, where it is continued
  std::string template_name;  // or ...
  std::string template_text;  // ... the request's own
};

// ApiError 400 naming the field.
ChatRequest parse_chat_request(std::string_view body, const SamplingDefaults& defaults,
                               int vocab_size, const CompletionLimits& limits = {});

}  // namespace stretto
