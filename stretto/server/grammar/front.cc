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

ExprPtr calls(const AskedCalls& asked, bool is_compact, Rules& rules, Budget& budget) {
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
    one_of.push_back(sequence({tagged(asked.before_name + name + asked.after_name, asked.tags),
                               std::move(arguments), tagged(asked.after_arguments, asked.tags)}));
  }
  const ExprPtr one = rule(rules.add(choice(std::move(one_of))));
  std::vector<ExprPtr> parts = {tagged(asked.begin, asked.tags), one};
  if (!asked.only_one) {
    parts.push_back(repeat(sequence({tagged(asked.between, asked.tags), one}), 0, -1));
  }
  parts.push_back(tagged(asked.end, asked.tags));
  return sequence(std::move(parts));
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

ExprPtr with_thinking(Asked::Thinking thinking, ExprPtr answer) {
  if (thinking == Asked::Thinking::kNone) return answer;
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
                     calls.only_one};
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
  if (asked.kind != Asked::Kind::kCalls && !asked.calls.tools.empty()) {
    answer = choice({std::move(answer), calls(asked.calls, asked.is_compact, out, budget)});
  }
  out.root = out.add(with_thinking(asked.thinking, std::move(answer)));
  return out;
}

}  // namespace stretto::grammar
