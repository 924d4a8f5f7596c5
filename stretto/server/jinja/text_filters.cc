#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <functional>

#include "stretto/server/jinja/builtins.h"
#include "stretto/server/jinja/error.h"
#include "stretto/server/jinja/filters.h"

namespace stretto::jinja {
namespace {

Value filter_abs(Evaluator&, const Value& value, Arguments& arguments) {
  Given("abs", arguments, {});
  if (!value.is_number()) fail("bad operand type for abs(): '{}'", value.type_name());
  if (value.is(Value::Kind::kFloat)) return Value::number(std::abs(value.as_double()));
  return value.as_int() < 0 ? negated(value) : Value::integer(value.as_int());
}

Text title_of_all(TextView text) {
  // Words end at white space, hyphens and brackets.
  Text out;
  bool begins = true;
  for (char32_t c : text) {
    out += begins ? upper({&c, 1}) : lower({&c, 1});
    const char32_t p = plain(c);
    begins = is_space(c) || p == U'-' || p == U'(' || p == U'{' || p == U'[' || p == U'<';
  }
  return out;
}

template <Text (*kMap)(TextView), bool kStaysSafe = true>
Value filter_map_text(Evaluator& evaluator, const Value& value, Arguments& arguments) {
  Given("a filter", arguments, {});
  return Value::text(kMap(charged_str(evaluator, value)), kStaysSafe && value.is_safe());
}

Value filter_default(Evaluator&, const Value& value, Arguments& arguments) {
  Given given("default", arguments, {"default_value", "boolean"});
  bool is_absent = value.is_undefined() || (given.truth(1, false) && !value.truth());
  if (!is_absent) return value;
  return given.has(0) ? given[0] : Value::text(Text());
}

Value filter_escape(Evaluator& evaluator, const Value& value, Arguments& arguments) {
  Given("escape", arguments, {});
  if (value.is_safe()) return value;
  Text out = html_escaped(charged_str(evaluator, value));
  evaluator.charge_text(out.size());
  return Value::text(std::move(out), true);
}

Value filter_float(Evaluator&, const Value& value, Arguments& arguments) {
  Given given("float", arguments, {"default"});
  if (value.is_undefined()) fail("{}", value.note());
  if (value.is_number()) return Value::number(value.as_double());
  if (value.is_text()) {
    std::string text = to_utf8(strip(value.as_text(), nullptr, true, true));
    char* end = nullptr;
    bool is_plain = text.find_first_of("xXpP_") == std::string::npos && !text.empty();
    double d = is_plain ? std::strtod(text.c_str(), &end) : 0;
    if (is_plain && end == text.c_str() + text.size()) return Value::number(d);
  }
  return given.has(0) ? given[0] : Value::number(0);
}

Value filter_int(Evaluator&, const Value& value, Arguments& arguments) {
  Given given("int", arguments, {"default", "base"});
  if (value.is_undefined()) fail("{}", value.note());
  Value absent = given.has(0) ? given[0] : Value::integer(0);
  const std::int64_t base = given.integer(1, 10);
  if (value.is_integral()) return Value::integer(value.as_int());
  auto of_double = [&](double d) {
    if (std::isnan(d) || std::isinf(d)) return absent;
    if (!(std::abs(d) < 9.2e18)) fail("a whole number leaves 64 bits");
    return Value::integer(static_cast<std::int64_t>(d));
  };
  if (value.is(Value::Kind::kFloat)) return of_double(value.as_double());
  if (!value.is_text()) return absent;
  if (base != 10 && base != 16 && base != 8 && base != 2)
    fail("int: a base of {} is not supported", base);
  std::string text = to_utf8(strip(value.as_text(), nullptr, true, true));
  char* end = nullptr;
  errno = 0;
  std::string digits = text;
  if (base != 10 && digits.size() > 2 && digits[0] == '0' &&
      (digits[1] | 0x20) == (base == 16  ? 'x'
                             : base == 8 ? 'o'
                                         : 'b')) {
    digits.erase(0, 2);
  }
  std::int64_t whole = std::strtoll(digits.c_str(), &end, static_cast<int>(base));
  if (!digits.empty() && end == digits.c_str() + digits.size()) {
    if (errno == ERANGE) fail("a whole number leaves 64 bits");
    return Value::integer(whole);
  }
  double d = std::strtod(text.c_str(), &end);
  bool is_plain = text.find_first_of("xXpP_") == std::string::npos && !text.empty();
  return is_plain && end == text.c_str() + text.size() ? of_double(d) : absent;
}

Value filter_indent(Evaluator& evaluator, const Value& value, Arguments& arguments) {
  Given given("indent", arguments, {"width", "first", "blank"});
  Text indent;
  if (given.has(0) && given[0].is_text()) {
    indent = given[0].as_text();
  } else {
    std::int64_t width = given.integer(0, 4);
    if (width > 100'000) fail("indent: a width of {} is too large", width);
    indent = Text(static_cast<std::size_t>(std::max<std::int64_t>(width, 0)), U' ');
  }
  if (value.is_undefined()) fail("{}", value.note());
  if (!value.is_text()) fail("indent takes a text, not {}", value.type_name());
  Text text = value.as_text();
  text += U'\n';  // as jinja2 does, so that a line end at the end counts as one
  const bool blank = given.truth(2, false);
  Text out;
  bool is_first = true;
  for (const Text& line : split_lines(text)) {
    if (!is_first) out += U'\n';
    if (is_first ? given.truth(1, false) : blank || !line.empty()) {
      evaluator.charge_text(indent.size());
      out += indent;
    }
    out += line;
    is_first = false;
  }
  evaluator.charge_text(out.size());
  return Value::text(std::move(out), value.is_safe());
}

Value filter_replace(Evaluator& evaluator, const Value& value, Arguments& arguments) {
  Given given("replace", arguments, {"old", "new", "count"}, 2);
  Text text = charged_str(evaluator, value), from = given.text(0, U""), to = given.text(1, U"");
  evaluator.charge_text((text.size() / std::max<std::size_t>(from.size(), 1) + 1) * to.size());
  return Value::text(
      replace(text, from, to, given.has(2) && !given[2].is_none() ? given.integer(2, -1) : -1));
}

Value filter_round(Evaluator&, const Value& value, Arguments& arguments) {
  Given given("round", arguments, {"precision", "method"});
  const std::int64_t precision = given.integer(0, 0);
  const std::string way = to_utf8(given.text(1, U"common"));
  if (!value.is_number()) fail("round takes a number, not {}", value.type_name());
  if (way != "common" && way != "ceil" && way != "floor")
    fail("method must be common, ceil or floor");
  if (std::abs(precision) > 300) fail("round: a precision of {} is not supported", precision);
  double d = value.as_double();
  if (way == "common") {
    if (value.is_integral() && precision >= 0) return Value::integer(value.as_int());
    if (precision < 0) fail("round: a precision below 0 is not supported");
    if (!std::isfinite(d)) return Value::number(d);
    // To the nearest decimal of the exact value, ties to even, as Python's round().
    return Value::number(std::strtod(fmt::format("{:.{}f}", d, precision).c_str(), nullptr));
  }
  double factor = std::pow(10.0, static_cast<double>(precision));
  return Value::number((way == "ceil" ? std::ceil(d * factor) : std::floor(d * factor)) / factor);
}

Value filter_safe(Evaluator& evaluator, const Value& value, Arguments& arguments) {
  Given("safe", arguments, {});
  return value.is_safe() ? value : Value::text(charged_str(evaluator, value), true);
}

Value filter_string(Evaluator& evaluator, const Value& value, Arguments& arguments) {
  Given("string", arguments, {});
  return value.is_text() ? value : Value::text(charged_str(evaluator, value));
}

Value filter_tojson(Evaluator& evaluator, const Value& value, Arguments& arguments) {
  Given given("tojson", arguments, {"ensure_ascii", "indent", "separators", "sort_keys"});
  JsonStyle style{.ensure_ascii = given.truth(0, false), .sort_keys = given.truth(3, false)};
  if (given.has(1) && !given[1].is_none()) {
    style.is_indented = true;
    style.item_separator = U",";
    if (given[1].is_text()) {
      style.indent = given[1].as_text();
    } else {
      std::int64_t width = given.integer(1, 0);
      if (width > 1000) fail("tojson: an indent of {} is too large", width);
      style.indent = Text(static_cast<std::size_t>(std::max<std::int64_t>(width, 0)), U' ');
    }
  }
  if (given.has(2) && !given[2].is_none()) {
    if (!given[2].is_sequence() || given[2].items().size() != 2)
      fail("tojson: separators are two texts");
    style.item_separator = charged_str(evaluator, given[2].items()[0]);
    style.key_separator = charged_str(evaluator, given[2].items()[1]);
  }
  Text out = to_json(value, style, evaluator.text_left());
  evaluator.charge_text(out.size());
  return Value::text(std::move(out));
}

Value filter_trim(Evaluator& evaluator, const Value& value, Arguments& arguments) {
  Given given("trim", arguments, {"chars"});
  Text text = charged_str(evaluator, value);
  bool has_chars = given.has(0) && !given[0].is_none();
  return Value::text(Text(strip(text, has_chars ? &given.need_text(0) : nullptr, true, true)),
                     value.is_safe());
}

Value filter_wordcount(Evaluator& evaluator, const Value& value, Arguments& arguments) {
  Given("wordcount", arguments, {});
  std::int64_t count = 0;
  bool in_word = false;
  for (char32_t c : charged_str(evaluator, value)) {
    bool is_word = is_alpha(c) || plain(c) == U'_' || (plain(c) >= U'0' && plain(c) <= U'9');
    if (is_word && !in_word) ++count;
    in_word = is_word;
  }
  return Value::integer(count);
}

Value filter_attr(Evaluator&, const Value& value, Arguments& arguments) {
  Given given("attr", arguments, {"name"}, 1);
  if (value.is_undefined()) fail("{}", value.note());
  return method(value, to_name(given[0]));
}

Value filter_format(Evaluator& evaluator, const Value& value, Arguments& arguments) {
  if (!arguments.named.empty()) fail("format with names is not supported");
  Text out = percent_format(evaluator, charged_str(evaluator, value),
                            Value::tuple(arguments.positional), value.is_safe());
  evaluator.charge_text(out.size());
  return Value::text(std::move(out), value.is_safe());
}

constexpr NamedFilter kTextFilters[] = {
    {"abs", filter_abs},
    {"attr", filter_attr},
    {"capitalize", filter_map_text<capitalize>},
    {"d", filter_default},
    {"default", filter_default},
    {"e", filter_escape},
    {"escape", filter_escape},
    {"float", filter_float},
    {"format", filter_format},
    {"indent", filter_indent},
    {"int", filter_int},
    {"lower", filter_map_text<lower>},
    {"replace", filter_replace},
    {"round", filter_round},
    {"safe", filter_safe},
    {"string", filter_string},
    {"title", filter_map_text<title_of_all, false>},
    {"tojson", filter_tojson},
    {"trim", filter_trim},
    {"upper", filter_map_text<upper>},
    {"wordcount", filter_wordcount},
};

}  // namespace

Filter find_text_filter(const std::string& name) {
  for (const NamedFilter& one : kTextFilters) {
    if (name == one.name) return one.call;
  }
  return nullptr;
}

bool is_filter(const std::string& name) {
  return find_text_filter(name) != nullptr || find_sequence_filter(name) != nullptr;
}

Value Evaluator::filter(const std::string& name, const Value& value, Arguments& arguments) {
  charge(1);
  Filter found = find_text_filter(name);
  if (found == nullptr) found = find_sequence_filter(name);
  if (found == nullptr) fail("No filter named '{}'", name);
  return found(*this, value, arguments);
}

}  // namespace stretto::jinja
