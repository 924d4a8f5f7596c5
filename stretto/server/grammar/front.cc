#include "stretto/server/grammar/front.h"

#include <fmt/format.h>

#include <utility>

#include "stretto/base/printable.h"
#include "stretto/server/grammar/gbnf.h"
#include "stretto/server/grammar/json_text.h"
#include "stretto/server/grammar/regex.h"
#include "stretto/server/grammar/terminals.h"

namespace stretto::grammar {
namespace {

// Bytes, of which the tags may also come as special tokens.
ExprPtr tagged(std::string_view bytes, const std::vector<std::string>& tags) {
  std::vector<ExprPtr> parts;
  while (!bytes.empty()) {
    std::size_t first = bytes.npos;
    std::string_view found;
    for (const std::string& tag : tags) {
      const std::size_t at = bytes.find(tag);
      if (at < first) first = at, found = tag;
    }
    if (first > 0) parts.push_back(terminal(text(bytes.substr(0, first))));
    if (first == bytes.npos) break;
    parts.push_back(terminal(choice({text(found), text(special_text(found))})));
    bytes.remove_prefix(first + found.size());
  }
  return sequence(std::move(parts));
}

// `is_open`: the text behind the opening tag.
ExprPtr calls(const AskedCalls& asked, bool is_compact, Rules& rules, Budget& budget,
              bool is_open = false) {
  std::string begin = asked.begin, before_name = asked.before_name;
  for (std::string* first : {&begin, &before_name}) {
    if (is_open && first->starts_with(asked.tag)) first->erase(0, asked.tag.size());
  }
  // Calls with a tag each: another one is found in the text behind this one.
  const bool is_one = asked.only_one || (is_open && before_name != asked.before_name);
  std::vector<ExprPtr> one_of;
  for (const AskedCalls::Tool& tool : asked.tools) {
    std::string name = asked.quotes_names ? json_quoted(tool.name) : tool.name;
    if (asked.quotes_names) name = name.substr(1, name.size() - 2);
    ExprPtr arguments;
    try {
      arguments = add_schema(rules, tool.parameters, {.is_compact = is_compact}, budget);
    } catch (const GrammarError& e) {
      throw GrammarError(fmt::format("'{}': {}", printable(tool.name, 80), e.what()));
    }
    one_of.push_back(sequence({tagged(before_name + name + asked.after_name, asked.tags),
                               std::move(arguments), tagged(asked.after_arguments, asked.tags)}));
  }
  const ExprPtr one = rule(rules.add(choice(std::move(one_of))));
  std::vector<ExprPtr> parts = {tagged(begin, asked.tags), one};
  if (!is_one) {
    parts.push_back(repeat(sequence({tagged(asked.between, asked.tags), one}), 0, -1));
  }
  parts.push_back(tagged(asked.end, asked.tags));
  return sequence(std::move(parts));
}

ExprPtr any_bytes() { return repeat(bytes(ByteSet().set()), 0, -1); }

// Whatever a model may write, without such a tag, which its special token has inside.
ExprPtr without(std::string_view tag) {
  return but_not(any_bytes(), sequence({any_bytes(), text(tag), any_bytes()}));
}

// The same up to the tag, and the tag.
ExprPtr free_up_to(std::string_view tag) {
  const ExprPtr more = bytes(ByteSet().set());
  return choice({but_not(sequence({any_bytes(), text(tag)}),
                         sequence({any_bytes(), text(tag), more, any_bytes()})),
                 sequence({without(tag), text(special_text(tag))})});
}

// Free text, where a call begins the call, and so on.
ExprPtr free_with_calls(const AskedCalls& asked, bool is_compact, Rules& rules, Budget& budget) {
  const int rest = rules.add(nullptr);
  const ExprPtr call = rule(rules.add(calls(asked, is_compact, rules, budget, true)));
  const ExprPtr behind = asked.only_one ? text("") : rule(rest);
  const ExprPtr plain = without(asked.tag), up_to = free_up_to(asked.tag);
  // Text that does not begin so, and what comes after it.
  auto text_but = [&](const ExprPtr& begin) {
    return choice({terminal(but_not(plain, begin)),
                   sequence({terminal(but_not(up_to, begin)), call, behind})});
  };
  if (!asked.begins_answers) {
    rules.bodies[static_cast<std::size_t>(rest)] = text_but(choice({}));
    return rule(rest);
  }
  ByteSet spaces;
  for (char c : std::string_view(" \t\r\n")) spaces.set(static_cast<unsigned char>(c));
  const ExprPtr space = repeat(bytes(spaces), 0, -1);
  // Behind a call a semicolon begins another one.
  rules.bodies[static_cast<std::size_t>(rest)] =
      text_but(sequence({space, text(";"), any_bytes()}));
  return choice({text_but(sequence({space, text("{"), any_bytes()})),
                 sequence({terminal(space), call, behind})});
}

// Any text up to the first such tag, and the tag.
ExprPtr up_to(std::string_view tag) {
  const ExprPtr any = repeat(utf8(complement({})), 0, -1);
  const ExprPtr bytes = repeat(grammar::bytes(ByteSet().set()), 0, -1);
  ExprPtr without = but_not(any, sequence({bytes, text(tag), bytes}));
  // The tag's own bytes may not begin in the text before it.
  ExprPtr plain =
      both(sequence({any, text(tag)}),
           but_not(bytes, sequence({bytes, text(tag), bytes, grammar::bytes(ByteSet().set())})));
  return terminal(
      choice({std::move(plain), sequence({std::move(without), text(special_text(tag))})}));
}

ExprPtr with_thinking(Asked::Thinking thinking, bool is_free, ExprPtr answer) {
  if (thinking == Asked::Thinking::kNone) return answer;
  if (is_free) {  // which thoughts are, too, and they may be all
    constexpr std::string_view kEnd = "</think>";
    ExprPtr thought =
        choice({terminal(without(kEnd)), sequence({terminal(free_up_to(kEnd)), answer})});
    if (thinking == Asked::Thinking::kOpen) return thought;
    return choice(
        {sequence({tagged("<think>", {"<think>"}), std::move(thought)}), std::move(answer)});
  }
  const ExprPtr space = terminal(repeat(text("\n"), 0, 3));
  ExprPtr thought = sequence({up_to("</think>"), space});
  if (thinking == Asked::Thinking::kMay) {
    thought = optional(sequence({tagged("<think>", {"<think>"}), std::move(thought)}));
  }
  return sequence({std::move(thought), std::move(answer)});
}

}  // namespace

std::string Asked::key() const {
  OrderedJson tools = OrderedJson::array();
  for (const AskedCalls::Tool& tool : calls.tools) tools.push_back({tool.name, tool.parameters});
  OrderedJson all = {static_cast<int>(kind),
                     schema,
                     text,
                     choices,
                     is_compact,
                     static_cast<int>(thinking),
                     tools,
                     calls.before_name,
                     calls.after_name,
                     calls.after_arguments,
                     calls.begin,
                     calls.between,
                     calls.end,
                     calls.only_one,
                     calls.tag,
                     calls.begins_answers};
  return all.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

namespace {

// The rule of what is asked for, without calls and thoughts.
Rules rules_of_kind(const Asked& asked, const Vocabulary& vocabulary, Budget& budget) {
  Rules out;
  auto root = [&](ExprPtr whole) {
    out.root = out.add(std::move(whole));
    return std::move(out);
  };
  switch (asked.kind) {
    case Asked::Kind::kObject:
      return rules_of_schema(any_object(), {.is_compact = asked.is_compact}, budget);
    case Asked::Kind::kSchema:
      return rules_of_schema(asked.schema, {.is_compact = asked.is_compact}, budget);
    case Asked::Kind::kRegex:
      return root(terminal(parse_regex(asked.text, {}, budget)));
    case Asked::Kind::kGbnf:
      return with_terminals(parse_gbnf(asked.text, budget), vocabulary, budget);
    case Asked::Kind::kCalls:
      return root(calls(asked.calls, asked.is_compact, out, budget));
    case Asked::Kind::kFree:
      return root(free_with_calls(asked.calls, asked.is_compact, out, budget));
    case Asked::Kind::kChoice:
      break;
  }
  std::vector<ExprPtr> choices;
  for (const std::string& one : asked.choices) choices.push_back(text(one));
  return root(terminal(choice(std::move(choices))));
}

}  // namespace

Rules rules_of(const Asked& asked, const Vocabulary& vocabulary, Budget& budget) {
  Rules out = rules_of_kind(asked, vocabulary, budget);
  ExprPtr answer = rule(out.root);
  const bool is_free = asked.kind == Asked::Kind::kFree;
  if (asked.kind != Asked::Kind::kCalls && !is_free && !asked.calls.tools.empty()) {
    answer = choice({std::move(answer), calls(asked.calls, asked.is_compact, out, budget)});
  }
  out.root = out.add(with_thinking(asked.thinking, is_free, std::move(answer)));
  return out;
}

}  // namespace stretto::grammar
