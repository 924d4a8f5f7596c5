#include "stretto/server/chat_output.h"

#include <algorithm>

#include "stretto/base/errors.h"
#include "stretto/base/json.h"

namespace stretto {
namespace {

constexpr std::string_view kThink = "<think>", kThinkEnd = "</think>";
constexpr std::string_view kToolCall = "<tool_call>", kToolCallEnd = "</tool_call>";
constexpr std::string_view kToolCalls = "[TOOL_CALLS]", kArguments = "[ARGS]";
constexpr std::string_view kPython = "<|python_tag|>";
constexpr std::string_view kSpace = " \t\r\n";

// How many bytes at the end of `text` may be the beginning of `tag`.
std::size_t partial_tag(std::string_view text, std::string_view tag) {
  for (std::size_t size = std::min(text.size(), tag.size() - 1); size > 0; --size) {
    if (text.ends_with(tag.substr(0, size))) return size;
  }
  return 0;
}

bool may_begin(std::string_view text, std::string_view tag) {
  return text.size() < tag.size() && tag.starts_with(text);
}

std::string_view without_space(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(kSpace);
  if (begin == text.npos) return {};
  return text.substr(begin, text.find_last_not_of(kSpace) - begin + 1);
}

// Where the JSON value that `text` begins with ends, by brackets and strings; npos where it does
// not.
std::size_t end_of_json(std::string_view text) {
  int depth = 0;
  bool in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') {
        ++i;
      } else if (c == '"') {
        in_string = false;
      }
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{' || c == '[') {
      ++depth;
    } else if (c == '}' || c == ']') {
      if (--depth <= 0) return depth == 0 ? i + 1 : text.npos;
    } else if (depth == 0 && kSpace.find(c) == kSpace.npos) {
      return text.npos;
    }
  }
  return text.npos;
}

// A value of the object as it stands in the text, so that the order of keys stays.
std::optional<std::string> raw_field(std::string_view object, std::string_view name) {
  int depth = 0;
  for (std::size_t i = 0; i < object.size(); ++i) {
    const char c = object[i];
    if (c == '{' || c == '[') {
      ++depth;
    } else if (c == '}' || c == ']') {
      --depth;
    } else if (c == '"') {
      const std::size_t begin = ++i;
      while (i < object.size() && object[i] != '"') i += object[i] == '\\' ? 2 : 1;
      if (i >= object.size()) return std::nullopt;
      if (depth != 1 || object.substr(begin, i - begin) != name) continue;
      std::size_t at = object.find_first_not_of(kSpace, i + 1);
      if (at == object.npos || object[at] != ':') continue;
      at = object.find_first_not_of(kSpace, at + 1);
      if (at == object.npos) return std::nullopt;
      std::size_t size = end_of_json(object.substr(at));
      return size == object.npos ? std::nullopt
                                 : std::optional<std::string>(object.substr(at, size));
    }
  }
  return std::nullopt;
}

std::optional<ToolCall> to_call(std::string_view text) {
  Json json;
  try {
    json = parse_json(text, "call");
  } catch (const UserError&) {
    return std::nullopt;
  }
  if (!json.is_object() || !json.contains("name") || !json["name"].is_string()) return std::nullopt;
  ToolCall out{.name = json["name"].get<std::string>(), .arguments = "{}"};
  for (const char* field : {"arguments", "parameters"}) {
    if (!json.contains(field)) continue;
    const Json& value = json[field];
    if (value.is_string()) {
      out.arguments = value.get<std::string>();
    } else if (value.is_object()) {
      out.arguments = raw_field(text, field).value_or(to_line(value));
    } else {
      return std::nullopt;
    }
    return out;
  }
  return out;
}

std::string_view call_begin(ToolFormat format) {
  return format == ToolFormat::kHermes ? kToolCall : kToolCalls;
}

}  // namespace

std::optional<ToolFormat> tool_format_named(const std::string& name) {
  if (name == "hermes") return ToolFormat::kHermes;
  if (name == "llama3") return ToolFormat::kLlama3;
  if (name == "mistral") return ToolFormat::kMistral;
  return std::nullopt;
}

ToolFormat tool_format_of_template(const std::string& source) {
  if (source.find(kToolCall) != source.npos) return ToolFormat::kHermes;
  if (source.find(kToolCalls) != source.npos) return ToolFormat::kMistral;
  if (source.find(kPython) != source.npos) return ToolFormat::kLlama3;
  return ToolFormat::kNone;
}

std::optional<std::vector<ToolCall>> parse_tool_calls(std::string_view text, ToolFormat format) {
  std::vector<ToolCall> out;
  text = without_space(text);
  if (format == ToolFormat::kMistral && text.starts_with('[')) {
    if (end_of_json(text) != text.size()) return std::nullopt;
    text = text.substr(1, text.size() - 2);
  } else if (format == ToolFormat::kMistral) {
    const std::size_t arguments = text.find(text.find(kArguments) != text.npos ? '[' : '{');
    if (arguments == text.npos) return std::nullopt;
    std::string_view json = text.substr(arguments);
    if (json.starts_with(kArguments)) json.remove_prefix(kArguments.size());
    json = without_space(json);
    if (end_of_json(json) != json.size()) return std::nullopt;
    try {
      if (!parse_json(json, "call").is_object()) return std::nullopt;
    } catch (const UserError&) {
      return std::nullopt;
    }
    out.push_back({.name = std::string(without_space(text.substr(0, arguments))),
                   .arguments = std::string(json)});
    return out;
  }
  const char between = format == ToolFormat::kLlama3 ? ';' : ',';
  while (!text.empty()) {
    const std::size_t end = end_of_json(text);
    if (end == text.npos) return std::nullopt;
    auto call = to_call(text.substr(0, end));
    if (!call) return std::nullopt;
    out.push_back(std::move(*call));
    text = without_space(text.substr(end));
    if (text.empty()) break;
    if (text.front() != between) return std::nullopt;
    text = without_space(text.substr(1));
  }
  if (out.empty() || (format == ToolFormat::kHermes && out.size() != 1)) return std::nullopt;
  return out;
}

grammar::AskedCalls form_of_calls(ToolFormat format, bool names_arguments) {
  grammar::AskedCalls out{
      .before_name = "{\"name\": \"", .after_name = "\", \"arguments\": ", .after_arguments = "}"};
  switch (format) {
    case ToolFormat::kNone:
      break;
    case ToolFormat::kHermes:
      out.before_name = std::string(kToolCall) + "\n" + out.before_name;
      out.after_arguments += "\n" + std::string(kToolCallEnd);
      out.between = "\n";
      out.tags = {std::string(kToolCall), std::string(kToolCallEnd)};
      break;
    case ToolFormat::kLlama3:
      out.after_name = "\", \"parameters\": ";
      out.between = "; ";
      break;
    case ToolFormat::kMistral:
      out.tags = {std::string(kToolCalls), std::string(kArguments)};
      if (names_arguments) {
        out.before_name = kToolCalls;
        out.after_name = kArguments;
        out.after_arguments.clear();
        out.quotes_names = false;
      } else {
        out.begin = std::string(kToolCalls) + "[";
        out.between = ", ";
        out.end = "]";
      }
  }
  return out;
}

ChatOutput::ChatOutput(const Options& options)
    : options_(options),
      state_(!options.has_reasoning        ? State::kContent
             : options.begins_in_reasoning ? State::kReasoning
                                           : State::kBegin) {}

ChatDelta ChatOutput::push(std::string_view text) {
  held_ += text;
  ChatDelta out;
  step(out, false);
  return out;
}

ChatDelta ChatOutput::finish() {
  ChatDelta out;
  step(out, true);
  return out;
}

void ChatOutput::step(ChatDelta& out, bool is_end) {
  bool goes_on = true;
  while (goes_on) {
    switch (state_) {
      case State::kBegin:
        goes_on = step_begin(is_end);
        break;
      case State::kReasoning:
        goes_on = step_reasoning(out, is_end);
        break;
      case State::kAfterReasoning: {
        held_.erase(0, std::min(held_.find_first_not_of(kSpace), held_.size()));
        goes_on = !held_.empty() || is_end;
        if (goes_on) state_ = State::kContent;
        break;
      }
      case State::kContent:
        goes_on = step_content(out, is_end);
        break;
      case State::kCall:
        goes_on = step_call(out, is_end);
        break;
    }
  }
}

bool ChatOutput::step_begin(bool is_end) {
  std::string_view text = held_;
  text.remove_prefix(std::min(text.find_first_not_of(kSpace), text.size()));
  if (!is_end && (text.empty() || may_begin(text, kThink))) return false;
  if (text.starts_with(kThink)) {
    held_ = std::string(text.substr(kThink.size()));
    state_ = State::kReasoning;
  } else {
    state_ = State::kContent;
  }
  return true;
}

bool ChatOutput::step_reasoning(ChatDelta& out, bool is_end) {
  // Line ends around the tags belong to the tags.
  auto add = [&](std::string_view text) {
    if (!has_content_) text.remove_prefix(std::min(text.find_first_not_of("\r\n"), text.size()));
    has_content_ |= !text.empty();
    out.reasoning += text;
  };
  if (std::size_t end = held_.find(kThinkEnd); end != held_.npos) {
    std::string_view text = std::string_view(held_).substr(0, end);
    text = text.substr(0, text.find_last_not_of("\r\n") + 1);
    add(text);
    held_.erase(0, end + kThinkEnd.size());
    state_ = State::kAfterReasoning;
    has_content_ = false;
    return true;
  }
  std::size_t keep = is_end ? 0 : partial_tag(held_, kThinkEnd);
  std::size_t sure = held_.size() - keep;
  if (!is_end) {
    std::size_t last = std::string_view(held_).substr(0, sure).find_last_not_of("\r\n");
    sure = last == held_.npos ? 0 : last + 1;
  }
  add(std::string_view(held_).substr(0, sure));
  held_.erase(0, sure);
  return false;
}

bool ChatOutput::step_content(ChatDelta& out, bool is_end) {
  auto add = [&](std::size_t size) {
    out.content += std::string_view(held_).substr(0, size);
    has_content_ |= size > 0;
    held_.erase(0, size);
  };
  if (options_.tools == ToolFormat::kNone) {
    add(held_.size());
    return false;
  }
  if (options_.tools == ToolFormat::kLlama3) {
    // A call is all of an answer, or follows the tag.
    std::string_view text = held_;
    text.remove_prefix(std::min(text.find_first_not_of(kSpace), text.size()));
    if (!has_content_) {
      if (!is_end && (text.empty() || may_begin(text, kPython))) return false;
      if (text.starts_with('{') || text.starts_with(kPython)) {
        state_ = State::kCall;
        return true;
      }
    }
    if (std::size_t tag = held_.find(kPython); tag != held_.npos) {
      add(tag);
      state_ = State::kCall;
      return true;
    }
    add(held_.size() - (is_end ? 0 : partial_tag(held_, kPython)));
    return false;
  }
  const std::string_view begin = call_begin(options_.tools);
  if (std::size_t tag = held_.find(begin); tag != held_.npos) {
    // White space before a call belongs to the call.
    std::size_t size = std::string_view(held_).substr(0, tag).find_last_not_of(kSpace) + 1;
    add(size);
    state_ = State::kCall;
    return true;
  }
  if (is_end) {
    const bool is_blank = without_space(held_).empty();
    if (!has_calls_ || !is_blank) add(held_.size());
    return false;
  }
  std::size_t sure = held_.size() - partial_tag(held_, begin);
  add(std::string_view(held_).substr(0, sure).find_last_not_of(kSpace) + 1);
  return false;
}

bool ChatOutput::step_call(ChatDelta& out, bool is_end) {
  std::string_view text = held_;
  std::size_t whole = held_.size();
  const std::size_t lead = std::min(text.find_first_not_of(kSpace), text.size());
  if (options_.tools == ToolFormat::kHermes) {
    const std::size_t begin = lead + kToolCall.size();
    const std::size_t end = text.find(kToolCallEnd, begin);
    if (end == text.npos && !is_end) return false;
    if (end != text.npos) whole = end + kToolCallEnd.size();
    text = text.substr(begin, std::min(end, text.size()) - begin);
  } else if (options_.tools == ToolFormat::kMistral) {
    const std::size_t begin = lead + kToolCalls.size();
    const std::size_t next = text.find(kToolCalls, begin);
    if (next == text.npos && !is_end) return false;
    whole = std::min(next, whole);
    text = text.substr(begin, whole - begin);
  } else {
    if (!is_end) return false;
    text = without_space(text);
    if (text.starts_with(kPython)) text.remove_prefix(kPython.size());
  }
  if (auto calls = parse_tool_calls(text, options_.tools)) {
    has_calls_ = true;
    out.calls.insert(out.calls.end(), calls->begin(), calls->end());
  } else {
    out.content += std::string_view(held_).substr(0, whole);  // no call after all
  }
  has_content_ = true;
  held_.erase(0, whole);
  state_ = State::kContent;
  return !held_.empty();
}

}  // namespace stretto
