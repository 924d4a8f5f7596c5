#include "stretto/server/grammar/schema_texts.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "stretto/base/printable.h"
#include "stretto/server/grammar/dfa.h"
#include "stretto/server/grammar/json_text.h"
#include "stretto/server/grammar/regex.h"
#include "stretto/server/grammar/schema_formats.h"

namespace stretto::grammar {
namespace {

constexpr int kMostLength = 2000;  // of maxLength and minLength, in characters
constexpr int kShortLength = 100;

ExprPtr any_text() { return repeat(json_plain_character(), 0, -1); }

}  // namespace

std::string unquoted(std::string_view text) {
  const std::string quoted = json_quoted(text);
  return quoted.substr(1, quoted.size() - 2);
}

ExprPtr texts_of(const std::vector<const OrderedJson*>& values) {
  std::vector<ExprPtr> out;
  for (const OrderedJson* value : values) {
    if (value->is_string()) out.push_back(text(unquoted(value->get<std::string>())));
  }
  return choice(std::move(out));
}

bool SchemaTexts::fits(const ExprPtr& content, const std::string& name) {
  const Dfa dfa = make_dfa(*content, budget_.limits().states, budget_);
  int state = dfa.start;
  for (char c : unquoted(name)) {
    if (state >= 0) state = dfa.step(state, static_cast<std::uint8_t>(c));
  }
  return state >= 0 && dfa.accepts[static_cast<std::size_t>(state)] != 0;
}

ExprPtr SchemaTexts::pattern(const std::string& pattern, const SchemaPlace& at) {
  const OrderedJson holder = {{"pattern", pattern}};
  return expression({&holder, at.path}, "pattern");
}

ExprPtr SchemaTexts::names(const SchemaPlace& given, int depth) {
  budget_.make_parts(10);
  if (depth > kMostHops) given.fail("nests too deeply");
  SchemaPlace at = reader_.followed(given);
  if (at.schema->is_boolean()) {
    return *at.schema == true ? any_text() : choice({});
  }
  if (!at.schema->is_object()) at.fail("need an object, true or false");
  SchemaReader::check_keywords(at);
  if (at.schema->contains("allOf")) at = joiner_.joined(at);
  const OrderedJson& schema = *at.schema;
  for (const char* name : {"anyOf", "oneOf", "not"}) {
    if (!schema.contains(name)) continue;
    if (!at.has_only(name) || std::string_view(name) == "oneOf") {
      at.fail(fmt::format("'{}' in propertyNames is not supported so", name));
    }
    if (std::string_view(name) == "not") {
      return but_not(any_text(), names(at.in("not"), depth + 1));
    }
    std::vector<ExprPtr> out;
    for (const SchemaPlace& branch : reader_.branches(at, name)) {
      out.push_back(names(branch, depth + 1));
    }
    return choice(std::move(out));
  }
  if (schema.contains("const") || schema.contains("enum")) {
    return texts_of(reader_.values(at));
  }
  const std::vector<std::string> types = reader_.types(at);
  const bool may_be = types.empty() || !schema.contains("type") ||
                      std::find(types.begin(), types.end(), "string") != types.end();
  return may_be ? content(at, false) : choice({});
}

ExprPtr SchemaTexts::content(const SchemaPlace& at, bool in_any_way) {
  const OrderedJson& schema = *at.schema;
  const int min = reader_.count(at, "minLength", kMostLength).value_or(0);
  const std::optional<int> max = reader_.count(at, "maxLength", kMostLength);
  if (max && *max < min) at.fail("maxLength is below minLength");
  budget_.make_parts(10);
  std::vector<ExprPtr> all;
  auto add = [&](const SchemaPlace& place) {
    for (const char* name : {"pattern", "format"}) {
      if (!place.schema->contains(name)) continue;
      if (auto one = expression(place, name)) all.push_back(std::move(one));
    }
  };
  add(at);
  if (schema.contains(kAlso)) {
    for (const OrderedJson& one : schema[kAlso]) add({&one, at.path});
  }
  const bool is_free = all.empty() && in_any_way;
  if (min > 0 || max || all.empty()) {
    // Every way to escape a character makes a long string's automaton twice as large.
    const bool is_short = std::max(min, max.value_or(0)) <= kShortLength;
    ExprPtr one = is_free && is_short ? json_any_character() : json_plain_character();
    all.push_back(repeat(std::move(one), min, max.value_or(-1)));
  }
  ExprPtr whole = all[0];
  for (std::size_t i = 1; i < all.size(); ++i) whole = both(whole, all[i]);
  return whole;
}

// Null where every text is of the format.
ExprPtr SchemaTexts::expression(const SchemaPlace& at, const char* name) {
  const OrderedJson& value = (*at.schema)[name];
  if (!value.is_string()) at.fail(fmt::format("{}: need a text", name));
  const auto text = value.get<std::string>();
  RegexOptions options{.matches_whole = false, .written = json_characters};
  std::string_view regex = text;
  if (std::string_view(name) == "format") {
    if (is_any_format(text)) return nullptr;
    auto known = regex_of_format(text);
    if (!known) at.fail("format '" + printable(text, 40) + "' is not supported");
    regex = *known;
    options.matches_whole = true;
  }
  try {
    return parse_regex(regex, options, budget_);
  } catch (const GrammarError& e) {
    at.fail(fmt::format("{}: {}", name, e.what()));
  }
}

}  // namespace stretto::grammar
