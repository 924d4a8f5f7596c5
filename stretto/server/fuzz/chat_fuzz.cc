// Bodies of chat, completion and responses requests, as anybody may send them: read, rendered
// through a template that touches every field, and read once more as if a model had written them.
// An error that becomes a 400 is fine; anything else is a finding.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "stretto/base/errors.h"
#include "stretto/server/api_error.h"
#include "stretto/server/chat_output.h"
#include "stretto/server/chat_request.h"
#include "stretto/server/completion_request.h"
#include "stretto/server/responses_request.h"

namespace {

constexpr std::string_view kTemplate = R"({{ bos_token }}{% for tool in tools or [] %}
{{ tool | tojson(indent=2) }}{{ tool.function.parameters.properties | items | list }}{% endfor %}
{% for m in messages %}<|{{ m.role | upper }}|>
{{ m.content if m.content is string else m.content | tojson }}
{% for call in m.tool_calls or [] %}{{ call.id[:9] ~ call.function.name }}
{% for name, value in call.function.arguments | items %}{{ name ~ '=' ~ value }}{% endfor %}
{% endfor %}{{ m.reasoning_content | trim }}{% endfor %}
{{ documents | tojson }}{{ enable_thinking }}
{% if add_generation_prompt %}<|assistant|>{% endif %})";

// A refusal is the client's fault, and a short one.
template <typename Read>
void expect_refusal_or(const Read& read) {
  try {
    read();
  } catch (const stretto::ApiError& e) {
    if (e.status() >= 500 || e.body().size() > 8192) __builtin_trap();
  } catch (const stretto::UserError&) {
  }
}

void parse(std::string_view body) {
  const stretto::SamplingDefaults defaults;
  constexpr int kVocabulary = 4096;
  static const auto parsed = stretto::jinja::Template::parse(kTemplate, "fuzz");
  auto render = [](const stretto::ChatRequest& chat) {
    parsed.render(chat.variables, {.max_steps = 200'000, .max_text = 2'000'000});
  };
  expect_refusal_or([&] { stretto::parse_completion_request(body, defaults, kVocabulary); });
  expect_refusal_or([&] { render(stretto::parse_chat_request(body, defaults, kVocabulary)); });
  expect_refusal_or(
      [&] { render(stretto::parse_responses_request(body, defaults, kVocabulary).chat); });
}

// The same text in pieces is the same answer, and without calls nothing of it is lost.
void read_answer(std::string_view text, std::size_t piece) {
  using stretto::ToolFormat;
  for (ToolFormat format : {ToolFormat::kHermes, ToolFormat::kLlama3, ToolFormat::kMistral}) {
    stretto::ChatDelta whole, pieces;
    stretto::ChatOutput at_once({.tools = format}), in_pieces({.tools = format});
    whole.add(at_once.push(text));
    whole.add(at_once.finish());
    for (std::size_t at = 0; at < text.size(); at += piece) {
      pieces.add(in_pieces.push(text.substr(at, piece)));
    }
    pieces.add(in_pieces.finish());
    if (whole.content != pieces.content || whole.calls.size() != pieces.calls.size()) {
      __builtin_trap();
    }
    for (std::size_t i = 0; i < whole.calls.size(); ++i) {
      if (whole.calls[i].name != pieces.calls[i].name) __builtin_trap();
      if (whole.calls[i].arguments != pieces.calls[i].arguments) __builtin_trap();
    }
    if (whole.calls.empty() && whole.content != text) __builtin_trap();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  parse(input);
  if (size > 1) read_answer(input.substr(1), 1 + static_cast<std::size_t>(data[0]) % 7);
  return 0;
}
