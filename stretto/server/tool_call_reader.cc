#include "stretto/server/tool_call_reader.h"

#include <utility>

#include "stretto/base/errors.h"
#include "stretto/base/json.h"

namespace stretto {
namespace {

bool is_space(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; }

bool is_in_name(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
         c == '-' || c == '.' || c == ':' || c == '/';
}

// Whether `text` begins with `tag`, or may do so once there is more of it.
enum class Begins : std::uint8_t { kYes, kNo, kPerhaps };
Begins begins(std::string_view text, std::string_view tag, bool is_end) {
  if (text.starts_with(tag)) return Begins::kYes;
  return !is_end && text.size() < tag.size() && tag.starts_with(text) ? Begins::kPerhaps
                                                                      : Begins::kNo;
}

// A JSON value; null where it is none.
Json value_of(const std::string& text) {
  try {
    return parse_json(text, "call");
  } catch (const UserError&) {
    return nullptr;
  }
}

}  // namespace

std::string_view call_tag(ToolFormat format) {
  switch (format) {
    case ToolFormat::kHermes:
      return "<tool_call>";
    case ToolFormat::kLlama3:
      return "<|python_tag|>";
    case ToolFormat::kMistral:
      return "[TOOL_CALLS]";
    case ToolFormat::kNone:
      break;
  }
  return {};
}

bool JsonNesting::take(char c) {
  if (in_text) {
    if (std::exchange(is_escaped, false)) return false;
    is_escaped = c == '\\';
    in_text = c != '"';
    return !in_text && depth == 0;
  }
  in_text = c == '"';
  if (c == '{' || c == '[') ++depth;
  return (c == '}' || c == ']') && --depth <= 0;
}

bool CallObject::is_arguments() const {
  return !has_arguments_ && (key_ == "arguments" || key_ == "parameters");
}

CallObject::Step CallObject::begin_value(char c) {
  value_ = c;
  nesting_ = {};
  state_ = State::kInValue;
  if (c == '"' || c == '{' || c == '[') {
    nesting_.take(c);
    if (c == '"' || !is_arguments()) return Step::kNothing;
    if (c == '[') return Step::kBroken;
    if (name_.empty()) return Step::kNothing;
    has_arguments_ = has_begun_ = in_arguments_ = true;
    return Step::kBegins;
  }
  state_ = State::kWord;
  return !is_in_name(c) || is_arguments() || key_ == "name" ? Step::kBroken : Step::kNothing;
}

CallObject::Step CallObject::end_value() {
  state_ = State::kComma;
  if (key_ != "name" && !is_arguments()) return Step::kNothing;
  const Json value = value_of(value_);
  if (key_ == "name") {
    if (!value.is_string() || value.get_ref<const std::string&>().empty()) return Step::kBroken;
    if (!has_begun_) name_ = value.get<std::string>();
    return Step::kNothing;
  }
  if (!value.is_string() && !value.is_object()) return Step::kBroken;
  has_arguments_ = true;
  arguments_ = value.is_string() ? value.get<std::string>() : value_;
  return Step::kNothing;
}

CallObject::Step CallObject::take(char c) {
  switch (state_) {
    case State::kKey:
      if (is_space(c)) return Step::kNothing;
      if (c == '}') return Step::kEnd;
      if (c != '"') return Step::kBroken;
      key_.clear();
      nesting_ = {};
      nesting_.take(c);
      state_ = State::kInKey;
      return Step::kNothing;
    case State::kInKey:
      if (nesting_.take(c)) {
        state_ = State::kColon;
      } else {
        key_ += c;
      }
      return Step::kNothing;
    case State::kColon:
      if (c == ':') state_ = State::kValue;
      return c == ':' || is_space(c) ? Step::kNothing : Step::kBroken;
    case State::kValue:
      return is_space(c) ? Step::kNothing : begin_value(c);
    case State::kInValue: {
      const bool is_last = nesting_.take(c);
      if (in_arguments_) {
        if (is_last) state_ = State::kComma;
        in_arguments_ = !is_last;
        return Step::kPiece;
      }
      value_ += c;
      return is_last ? end_value() : Step::kNothing;
    }
    case State::kWord:
      if (is_in_name(c) || c == '+') return Step::kNothing;
      state_ = State::kComma;
      [[fallthrough]];
    case State::kComma:
      if (c == ',') state_ = State::kKey;
      if (c == '}') return Step::kEnd;
      return c == ',' || is_space(c) ? Step::kNothing : Step::kBroken;
  }
  return Step::kBroken;
}

bool CallObject::is_call(ToolCall& out) const {
  if (name_.empty()) return false;
  out = {.name = name_, .arguments = has_arguments_ ? arguments_ : "{}"};
  return true;
}

void ToolCallReader::add(std::vector<ToolCall>& calls, char c) {
  if (calls.empty()) calls.push_back({.name = {}, .arguments = {}, .goes_on = true});
  calls.back().arguments += c;
  told_ = ++at_;
}

ToolCallReader::Is ToolCallReader::read(std::string& held, bool is_end,
                                        std::vector<ToolCall>& calls) {
  const Is is = read_on(held, is_end, calls);
  held.erase(0, told_);
  at_ -= std::exchange(told_, 0);
  return is;
}

ToolCallReader::Is ToolCallReader::read_on(std::string_view held, bool is_end,
                                           std::vector<ToolCall>& calls) {
  Is is = Is::kOpen;
  while (at_ < held.size()) {
    if (!step(held, is_end, calls, is)) return is;
  }
  if (!is_end) return Is::kOpen;
  // White space, and the sign before another call that did not come.
  if (state_ == State::kBetween || (state_ == State::kBegin && has_call_)) told_ = at_;
  return at_ == told_ ? Is::kDone : Is::kNone;
}

// One character or tag; false where it cannot go on now.
bool ToolCallReader::step(std::string_view held, bool is_end, std::vector<ToolCall>& calls,
                          Is& is) {
  const char c = held[at_];
  switch (state_) {
    case State::kTag:
      if (held.substr(at_).starts_with(call_tag(format_))) {
        at_ += call_tag(format_).size();
        state_ = State::kBegin;
      } else if (is_space(c)) {
        ++at_;
      } else {
        state_ = State::kBegin;  // Llama's may lack
      }
      return true;
    case State::kBegin:
      return step_begin(c, is);
    case State::kName:
    case State::kAfterName:
      return step_name(held, is_end, calls, is);
    case State::kArguments: {
      const bool is_last = arguments_.take(c);
      add(calls, c);
      is = Is::kDone;
      return !is_last;
    }
    case State::kObject:
      return step_object(held, is_end, calls, is);
    case State::kBetween:
      return step_between(held, is_end, is);
  }
  return false;
}

bool ToolCallReader::step_begin(char c, Is& is) {
  const bool may_be_named = format_ == ToolFormat::kMistral && !is_list_;
  if (c == '{') {
    object_ = {};
    state_ = State::kObject;
  } else if (may_be_named && is_in_name(c)) {
    state_ = State::kName;
    return true;  // which reads it
  } else if (may_be_named && c == '[') {
    is_list_ = true;
  } else if (!is_space(c)) {
    is = Is::kNone;
    return false;
  }
  ++at_;
  return true;
}

// name[ARGS]{...}, or without the tag.
bool ToolCallReader::step_name(std::string_view held, bool is_end, std::vector<ToolCall>& calls,
                               Is& is) {
  const char c = held[at_];
  if (state_ == State::kName && is_in_name(c)) {
    name_ += c;
    ++at_;
    return true;
  }
  state_ = State::kAfterName;
  if (c == '{') {
    arguments_.take(c);
    calls.push_back({.name = name_, .arguments = "{"});
    told_ = ++at_;
    state_ = State::kArguments;
    return true;
  }
  const Begins tag = begins(held.substr(at_), kArgumentsTag, is_end);
  if (tag == Begins::kYes) at_ += kArgumentsTag.size();
  if (is_space(c)) ++at_;
  if (tag == Begins::kYes || is_space(c)) return true;
  is = tag == Begins::kPerhaps ? Is::kOpen : Is::kNone;
  return false;
}

bool ToolCallReader::step_object(std::string_view held, bool is_end, std::vector<ToolCall>& calls,
                                 Is& is) {
  const char c = held[at_];
  if (format_ == ToolFormat::kHermes && object_.has_begun() && !object_.in_text() && c == '<') {
    // Nothing in JSON begins so: the arguments lack a brace.
    const Begins end = begins(held.substr(at_), kToolCallEnd, is_end);
    if (end == Begins::kYes) told_ = at_ += kToolCallEnd.size();
    is = end == Begins::kPerhaps ? Is::kOpen : Is::kDone;
    if (end != Begins::kNo || take_cut_end(held, is_end)) return false;
  }
  switch (object_.take(c)) {
    case CallObject::Step::kBegins:
      calls.push_back({.name = object_.name(), .arguments = "{"});
      told_ = ++at_;
      return true;
    case CallObject::Step::kPiece:
      add(calls, c);
      return true;
    case CallObject::Step::kEnd: {
      ToolCall call;
      ++at_;
      if (!object_.has_begun()) {
        if (!object_.is_call(call)) break;
        calls.push_back(std::move(call));
      }
      told_ = at_;
      state_ = State::kBetween;
      return true;
    }
    case CallObject::Step::kBroken:
      if (object_.has_begun()) {
        is = Is::kDone;
        return false;
      }
      break;
    case CallObject::Step::kNothing: {
      ++at_;
      if (object_.has_begun()) told_ = at_;  // fields after the arguments
      // What ends amid a text was none.
      const bool has_ended =
          format_ == ToolFormat::kHermes && c == '>' && held.substr(0, at_).ends_with(kToolCallEnd);
      if (!has_ended || object_.has_begun()) return true;
      break;
    }
  }
  is = Is::kNone;
  return false;
}

// Hermes' closing tag, of which the answer's end has left a part.
bool ToolCallReader::take_cut_end(std::string_view held, bool is_end) {
  if (!is_end || !kToolCallEnd.starts_with(held.substr(at_))) return false;
  told_ = at_ = held.size();
  return true;
}

bool ToolCallReader::step_between(std::string_view held, bool is_end, Is& is) {
  const char c = held[at_];
  is = Is::kDone;
  has_call_ = true;
  if (is_space(c)) {
    ++at_;
    return true;
  }
  if (format_ == ToolFormat::kHermes) {
    const Begins end = begins(held.substr(at_), kToolCallEnd, is_end);
    if (end == Begins::kYes) told_ = at_ += kToolCallEnd.size();
    if (end == Begins::kPerhaps) is = Is::kOpen;
    if (end != Begins::kNo || take_cut_end(held, is_end)) return false;
    if (c == '{') state_ = State::kBegin;  // another one between the same tags
    return c == '{';
  }
  if (format_ == ToolFormat::kMistral && c == ']') {
    told_ = ++at_;
    return false;
  }
  const char between = format_ == ToolFormat::kLlama3 ? ';' : ',';
  if (c != between || (format_ == ToolFormat::kMistral && !is_list_)) return false;
  state_ = State::kBegin;
  ++at_;
  return true;
}

}  // namespace stretto
