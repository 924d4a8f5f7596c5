#include "stretto/server/chat_output.h"

#include <algorithm>

namespace stretto {
namespace {

constexpr std::string_view kThink = "<think>", kThinkEnd = "</think>";
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

}  // namespace

std::optional<ToolFormat> tool_format_named(const std::string& name) {
  if (name == "hermes") return ToolFormat::kHermes;
  if (name == "llama3") return ToolFormat::kLlama3;
  if (name == "mistral") return ToolFormat::kMistral;
  return std::nullopt;
}

ToolFormat tool_format_of_template(const std::string& source) {
  for (ToolFormat format : {ToolFormat::kHermes, ToolFormat::kMistral, ToolFormat::kLlama3}) {
    if (source.find(call_tag(format)) != source.npos) return format;
  }
  return ToolFormat::kNone;
}

grammar::AskedCalls form_of_calls(ToolFormat format, bool names_arguments) {
  grammar::AskedCalls out{
      .before_name = "{\"name\": \"", .after_name = "\", \"arguments\": ", .after_arguments = "}"};
  out.tag = call_tag(format);
  out.begins_answers = format == ToolFormat::kLlama3;
  switch (format) {
    case ToolFormat::kNone:
      break;
    case ToolFormat::kHermes:
      out.before_name = std::string(call_tag(format)) + "\n" + out.before_name;
      out.after_arguments += "\n" + std::string(kToolCallEnd);
      out.between = "\n";
      out.tags = {std::string(call_tag(format)), std::string(kToolCallEnd)};
      break;
    case ToolFormat::kLlama3:
      out.after_name = "\", \"parameters\": ";
      out.between = "; ";
      break;
    case ToolFormat::kMistral:
      out.tags = {std::string(call_tag(format)), std::string(kArgumentsTag)};
      if (names_arguments) {
        out.before_name = call_tag(format);
        out.after_name = kArgumentsTag;
        out.after_arguments.clear();
        out.quotes_names = false;
      } else {
        out.begin = std::string(call_tag(format)) + "[";
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
                                           : State::kBegin),
      reader_(options.tools) {}

ChatDelta ChatOutput::push(std::string_view text) {
  held_ += text;
  return step(false);
}

ChatDelta ChatOutput::finish() { return step(true); }

ChatDelta ChatOutput::step(bool is_end) {
  ChatDelta out;
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
  if (options_.must_call) out.content.clear();
  return out;
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
  const std::string_view begin = call_tag(options_.tools);
  if (options_.tools == ToolFormat::kLlama3) {
    // A call is all of an answer, or follows the tag.
    std::string_view text = held_;
    text.remove_prefix(std::min(text.find_first_not_of(kSpace), text.size()));
    if (!has_content_) {
      if (!is_end && (text.empty() || may_begin(text, begin))) return false;
      if (text.starts_with('{') || text.starts_with(begin)) {
        state_ = State::kCall;
        return true;
      }
    }
    if (std::size_t tag = held_.find(begin); tag != held_.npos) {
      add(tag);
      state_ = State::kCall;
      return true;
    }
    add(held_.size() - (is_end ? 0 : partial_tag(held_, begin)));
    return false;
  }
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
  const auto is = reader_.read(held_, is_end, out.calls);
  has_calls_ |= !out.calls.empty();
  if (is == ToolCallReader::Is::kOpen) return false;
  if (is == ToolCallReader::Is::kNone) {
    out.content += std::string_view(held_).substr(0, reader_.size());
    held_.erase(0, reader_.size());
  }
  has_content_ = true;
  reader_ = ToolCallReader(options_.tools);
  state_ = State::kContent;
  return !held_.empty();
}

}  // namespace stretto
