#include <algorithm>
#include <cmath>
#include <limits>

#include "stretto/server/jinja/error.h"
#include "stretto/server/jinja/evaluator.h"

namespace stretto::jinja {
namespace {

[[noreturn]] void unsupported(const std::string& word, const Value& a, const Value& b) {
  for (const Value* side : {&a, &b}) {
    if (side->is_undefined()) fail("{}", side->note());
  }
  fail("unsupported operand types for {}: '{}' and '{}'", word, a.type_name(), b.type_name());
}

double power(double a, double b) {
  if (a == 0 && b < 0) fail("0.0 cannot be raised to a negative power");
  if (a < 0 && std::floor(b) != b) fail("a negative number to a fraction has no real value");
  return std::pow(a, b);
}

[[noreturn]] void too_large() { fail("a whole number leaves 64 bits"); }

Value integers(const std::string& word, std::int64_t a, std::int64_t b) {
  std::int64_t out = 0;
  if (word == "+") {
    if (__builtin_add_overflow(a, b, &out)) too_large();
  } else if (word == "-") {
    if (__builtin_sub_overflow(a, b, &out)) too_large();
  } else if (word == "*") {
    if (__builtin_mul_overflow(a, b, &out)) too_large();
  } else if (word == "**") {
    if (b < 0) return Value::number(power(static_cast<double>(a), static_cast<double>(b)));
    out = 1;
    for (std::int64_t i = 0; i < b && out != 0 && (out != 1 || a != 1); ++i) {
      if (a == -1 && i + 2 < b) i += (b - i - 1) / 2 * 2;  // signs alternate
      if (__builtin_mul_overflow(out, a, &out)) too_large();
    }
  } else {
    if (b == 0) fail("division by zero");
    if (word == "/") return Value::number(static_cast<double>(a) / static_cast<double>(b));
    if (a == std::numeric_limits<std::int64_t>::min() && b == -1) {
      if (word == "//") too_large();
      return Value::integer(0);
    }
    std::int64_t quotient = a / b, rest = a % b;
    if (rest != 0 && (rest < 0) != (b < 0)) {  // towards minus infinity
      --quotient;
      rest += b;
    }
    out = word == "//" ? quotient : rest;
  }
  return Value::integer(out);
}

Value floats(const std::string& word, double a, double b) {
  if (word == "+") return Value::number(a + b);
  if (word == "-") return Value::number(a - b);
  if (word == "*") return Value::number(a * b);
  if (word == "**") return Value::number(power(a, b));
  if (b == 0) fail("division by zero");
  if (word == "/") return Value::number(a / b);
  double rest = std::fmod(a, b);
  if (rest != 0 && (rest < 0) != (b < 0)) rest += b;
  if (rest == 0) rest = std::copysign(0.0, b);
  if (word == "%") return Value::number(rest);
  double quotient = (a - rest) / b;
  if (quotient == 0) return Value::number(std::copysign(0.0, a / b));
  double whole = std::floor(quotient);
  return Value::number(quotient - whole > 0.5 ? whole + 1 : whole);
}

Value repeated(Evaluator& evaluator, const Value& what, std::int64_t count) {
  auto times = static_cast<std::size_t>(std::max<std::int64_t>(count, 0));
  if (what.is_text()) {
    const Text& text = what.as_text();
    if (!text.empty()) {
      if (times > (std::size_t{1} << 32) / text.size()) fail("a text is repeated {} times", times);
      evaluator.charge_text(text.size() * times);
    }
    Text out;
    for (std::size_t i = 0; i < times && !text.empty(); ++i) out += text;
    return Value::text(std::move(out), what.is_safe());
  }
  const Values& items = what.items();
  if (!items.empty()) {
    if (times > (std::size_t{1} << 32) / items.size()) fail("a list is repeated {} times", times);
    evaluator.charge(items.size() * times);
  }
  Values out;
  for (std::size_t i = 0; i < times && !items.empty(); ++i) {
    out.insert(out.end(), items.begin(), items.end());
  }
  return what.is(Value::Kind::kList) ? Value::list(std::move(out)) : Value::tuple(std::move(out));
}

}  // namespace

Value negated(const Value& value) {
  if (value.is_integral()) {
    if (value.as_int() == std::numeric_limits<std::int64_t>::min()) too_large();
    return Value::integer(-value.as_int());
  }
  if (value.is(Value::Kind::kFloat)) return Value::number(-value.as_double());
  if (value.is_undefined()) fail("{}", value.note());
  fail("bad operand type for a sign: '{}'", value.type_name());
}

Value binary(Evaluator& evaluator, const std::string& word, const Value& a, const Value& b) {
  if (a.is_integral() && b.is_integral()) return integers(word, a.as_int(), b.as_int());
  if (a.is_number() && b.is_number()) return floats(word, a.as_double(), b.as_double());
  if (word == "+") {
    if (a.is_text() && b.is_text()) {
      evaluator.charge_text(a.as_text().size() + b.as_text().size());
      if (a.is_safe() == b.is_safe()) return Value::text(a.as_text() + b.as_text(), a.is_safe());
      Text out = a.is_safe() ? a.as_text() + html_escaped(b.as_text())
                             : html_escaped(a.as_text()) + b.as_text();
      evaluator.charge_text(out.size());
      return Value::text(std::move(out), true);
    }
    if (a.is_sequence() && a.kind() == b.kind()) {
      evaluator.charge(a.items().size() + b.items().size());
      Values out = a.items();
      out.insert(out.end(), b.items().begin(), b.items().end());
      return a.is(Value::Kind::kList) ? Value::list(std::move(out)) : Value::tuple(std::move(out));
    }
  }
  if (word == "*") {
    if ((a.is_text() || a.is_sequence()) && b.is_integral()) {
      return repeated(evaluator, a, b.as_int());
    }
    if ((b.is_text() || b.is_sequence()) && a.is_integral()) {
      return repeated(evaluator, b, a.as_int());
    }
  }
  if (word == "%" && a.is_text()) {
    Text out = percent_format(evaluator, a.as_text(), b, a.is_safe());
    evaluator.charge_text(out.size());
    return Value::text(std::move(out), a.is_safe());
  }
  unsupported(word, a, b);
}

bool contains(Evaluator& evaluator, const Value& container, const Value& item) {
  using Kind = Value::Kind;
  if (container.is_text()) {
    if (!item.is_text()) {
      fail("'in <string>' requires string as left operand, not {}", item.type_name());
    }
    evaluator.charge(container.as_text().size() / 8);
    return find_in(container.as_text(), item.as_text()) != TextView::npos;
  }
  if (container.is(Kind::kDict)) {
    evaluator.charge(item.extent().size);
    return container.as_dict().find(item) != nullptr;
  }
  if (container.is_none() || container.is_number() || container.is(Kind::kNamespace)) {
    fail("argument of type '{}' is not iterable", container.type_name());
  }
  Values items = to_items(container);
  evaluator.charge(items.size());
  return std::any_of(items.begin(), items.end(), [&](const Value& v) {
    evaluator.charge_comparison(v, item);
    return equal(v, item);
  });
}

std::vector<std::size_t> slice_places(std::size_t size, const Value& begin, const Value& end,
                                      const Value& step) {
  auto number = [](const Value& value, std::int64_t absent) {
    if (value.is_none()) return absent;
    if (!value.is_integral())
      fail("slice bounds are whole numbers or none, not {}", value.type_name());
    return value.as_int();
  };
  const std::int64_t by = number(step, 1);
  if (by == 0) fail("slice step cannot be zero");
  const auto count = static_cast<std::int64_t>(size);
  const std::int64_t lowest = by > 0 ? 0 : -1, highest = by > 0 ? count : count - 1;
  auto bound = [&](const Value& value, std::int64_t absent) {
    if (value.is_none()) return absent;
    std::int64_t at = number(value, 0);
    if (at < 0) at = at < -count ? lowest : at + count;
    return std::clamp(at, lowest, highest);
  };
  const std::int64_t from = bound(begin, by > 0 ? lowest : highest);
  const std::int64_t to = bound(end, by > 0 ? highest : lowest);
  std::vector<std::size_t> out;
  // A step beyond the size takes the first at most.
  const std::int64_t stride = std::clamp(by, -count - 1, count + 1);
  for (std::int64_t at = from; stride > 0 ? at < to : at > to; at += stride) {
    out.push_back(static_cast<std::size_t>(at));
  }
  return out;
}

Text charged_str(Evaluator& evaluator, const Value& value) {
  Text text = to_str(value, evaluator.text_left());
  evaluator.charge_text(text.size());
  return text;
}

Text percent_format(Evaluator& evaluator, const Text& format, const Value& values, bool escapes) {
  Text out;
  std::size_t next = 0;
  const bool is_tuple = values.is(Value::Kind::kTuple);
  auto take = [&]() -> const Value& {
    if (next >= (is_tuple ? values.items().size() : 1))
      fail("not enough arguments for format string");
    ++next;
    return is_tuple ? values.items()[next - 1] : values;
  };
  for (std::size_t i = 0; i < format.size(); ++i) {
    if (plain(format[i]) != U'%') {
      out += format[i];
      continue;
    }
    const char32_t sort = ++i < format.size() ? plain(format[i]) : 0;
    if (sort == U'%') {
      out += format[i];
    } else if (sort == U's') {
      const Value& value = take();
      const Text text = charged_str(evaluator, value);
      out += escapes && !value.is_safe() ? html_escaped(text) : text;
    } else if (sort == U'r') {
      const Text text = to_repr(take(), evaluator.text_left());
      evaluator.charge_text(text.size());
      out += escapes ? html_escaped(text) : text;
    } else if (sort == U'd' || sort == U'i') {
      const Value& value = take();
      if (!value.is_number())
        fail("%d format: a real number is required, not {}", value.type_name());
      double d = value.as_double();
      if (!value.is_integral() && !(std::abs(d) < 9e18)) too_large();
      out += to_text(
          std::to_string(value.is_integral() ? value.as_int() : static_cast<std::int64_t>(d)));
    } else {
      fail("a format with '%{}' is not supported", to_utf8(Text(1, sort)));
    }
  }
  if (is_tuple && next != values.items().size()) {
    fail("not all arguments converted during string formatting");
  }
  if (!is_tuple && next == 0 && !values.is(Value::Kind::kDict) && !values.is(Value::Kind::kList) &&
      !values.is_undefined()) {
    fail("not all arguments converted during string formatting");
  }
  return out;
}

}  // namespace stretto::jinja
