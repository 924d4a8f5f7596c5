// `is` tests.
#include <algorithm>

#include "stretto/server/jinja/builtins.h"
#include "stretto/server/jinja/error.h"

namespace stretto::jinja {
namespace {

using Kind = Value::Kind;

// Tests of one argument.
bool compares(Evaluator& evaluator, const std::string& name, const Value& a, const Value& b,
              bool& is) {
  evaluator.charge_comparison(a, b);
  if (name == "eq" || name == "equalto" || name == "==") {
    is = equal(a, b);
  } else if (name == "ne" || name == "!=") {
    is = !equal(a, b);
  } else if (name == "lt" || name == "lessthan" || name == "<") {
    is = less(a, b);
  } else if (name == "gt" || name == "greaterthan" || name == ">") {
    is = less(b, a);
  } else if (name == "le" || name == "<=") {
    is = less(a, b) || equal(a, b);
  } else if (name == "ge" || name == ">=") {
    is = less(b, a) || equal(a, b);
  } else if (name == "in") {
    is = contains(evaluator, b, a);
  } else if (name == "divisibleby") {
    is = equal(binary(evaluator, "%", a, b), Value::integer(0));
  } else if (name == "sameas") {
    const bool is_kept = a.is(Kind::kInt) && a.as_int() >= -5 && a.as_int() <= 256;  // by Python
    is = a.kind() == b.kind() &&
         (a.is_none() || ((a.is(Kind::kBool) || is_kept) && a.as_int() == b.as_int()) ||
          (a.identity() != nullptr && a.identity() == b.identity()));
  } else {
    return false;
  }
  return true;
}

bool is_cased(Evaluator& evaluator, const Value& value, bool (*wanted)(char32_t),
              bool (*refused)(char32_t)) {
  const Text text = charged_str(evaluator, value);
  return std::any_of(text.begin(), text.end(), wanted) &&
         std::none_of(text.begin(), text.end(), refused) &&
         std::none_of(text.begin(), text.end(), is_cased_title);
}

bool is_iterable(const Value& value) {
  return value.is_undefined() || value.is_text() || value.is_sequence() || value.is(Kind::kDict) ||
         value.is(Kind::kGenerator) || value.is(Kind::kLoop);
}

}  // namespace

bool is_test(const std::string& name) {
  static constexpr const char* kTests[] = {
      "eq",      "equalto",  "==",          "ne",       "!=",      "lt",        "lessthan",
      "<",       "gt",       "greaterthan", ">",        "le",      "<=",        "ge",
      ">=",      "in",       "divisibleby", "sameas",   "defined", "undefined", "none",
      "boolean", "true",     "false",       "integer",  "float",   "number",    "string",
      "mapping", "iterable", "sequence",    "callable", "lower",   "upper",     "escaped",
      "odd",     "even",     "filter",      "test"};
  return std::find(std::begin(kTests), std::end(kTests), name) != std::end(kTests);
}

bool Evaluator::test(const std::string& name, const Value& value, Arguments& arguments) {
  charge(1);
  bool is = false;
  if (arguments.positional.size() == 1 && arguments.named.empty() &&
      compares(*this, name, value, arguments.positional[0], is)) {
    return is;
  }
  Given("the test '" + name + "'", arguments, {});
  if (name == "defined") return !value.is_undefined();
  if (name == "undefined") return value.is_undefined();
  if (name == "none") return value.is_none();
  if (name == "boolean") return value.is(Kind::kBool);
  if (name == "true") return value.is(Kind::kBool) && value.as_int() != 0;
  if (name == "false") return value.is(Kind::kBool) && value.as_int() == 0;
  if (name == "integer") return value.is(Kind::kInt) || value.is(Kind::kBigInt);
  if (name == "float") return value.is(Kind::kFloat);
  if (name == "number") return value.is_number() || value.is(Kind::kBigInt);
  if (name == "string") return value.is_text();
  if (name == "mapping") return value.is(Kind::kDict);
  if (name == "iterable") return is_iterable(value);
  if (name == "sequence") {
    return value.is_undefined() || value.is_text() || value.is_sequence() || value.is(Kind::kDict);
  }
  if (name == "callable") return value.is(Kind::kFunction) || value.is_undefined();
  if (name == "lower") return is_cased(*this, value, is_cased_lower, is_cased_upper);
  if (name == "upper") return is_cased(*this, value, is_cased_upper, is_cased_lower);
  if (name == "escaped") return value.is_safe();
  if (name == "odd" || name == "even") {
    return equal(binary(*this, "%", value, Value::integer(2)),
                 Value::integer(name == "odd" ? 1 : 0));
  }
  if (name == "filter" || name == "test") fail("the test '{}' is not supported", name);
  fail("No test named '{}'", name);
}

}  // namespace stretto::jinja
