// The evaluator's expressions.
#include <algorithm>
#include <utility>

#include "stretto/server/jinja/builtins.h"
#include "stretto/server/jinja/error.h"
#include "stretto/server/jinja/evaluator.h"

namespace stretto::jinja {

Value Evaluator::eval(const Expr& expr) {
  using Kind = Expr::Kind;
  line_ = expr.line;
  charge(1);
  auto eval_parts = [&] {
    Values out;
    for (const ExprPtr& part : expr.parts) out.push_back(eval(*part));
    return out;
  };
  switch (expr.kind) {
    case Kind::kConstant:
      return expr.constant;
    case Kind::kName: {
      const Value* found = scope_->find(expr.word);
      return found != nullptr ? *found
                              : Value::undefined(fmt::format("'{}' is undefined", expr.word));
    }
    case Kind::kAttribute:
      return attribute(eval(*expr.parts[0]), expr.word);
    case Kind::kItem: {
      Value object = eval(*expr.parts[0]);
      if (expr.parts[1]->kind == Kind::kSlice) return eval_slice(object, *expr.parts[1]);
      return item(object, eval(*expr.parts[1]));
    }
    case Kind::kSlice:
      fail("a slice stands where none can");
    case Kind::kList:
      return Value::list(eval_parts());
    case Kind::kTuple:
      return Value::tuple(eval_parts());
    case Kind::kDict: {
      Dict dict;
      for (std::size_t i = 0; i < expr.parts.size(); i += 2) {
        Value key = eval(*expr.parts[i]);
        charge(key.extent().size);
        dict.set(key, eval(*expr.parts[i + 1]));
      }
      return Value::dict(std::move(dict));
    }
    case Kind::kUnary: {
      Value value = eval(*expr.parts[0]);
      if (expr.word == "not") return Value::boolean(!value.truth());
      if (expr.word == "-") return negated(value);
      if (!value.is_number()) negated(value);  // says what is wrong
      return value.is(Value::Kind::kBool) ? Value::integer(value.as_int()) : value;
    }
    case Kind::kBinary:
      return eval_binary(expr);
    case Kind::kCompare:
      return eval_compare(expr);
    case Kind::kConcat: {
      Text out;
      for (const Value& part : eval_parts()) {
        out += charged_str(*this, part);
      }
      return Value::text(std::move(out));
    }
    case Kind::kCondition:
      if (eval(*expr.parts[1]).truth()) return eval(*expr.parts[0]);
      if (expr.parts[2]) return eval(*expr.parts[2]);
      return Value::undefined("an inline if without else has no value");
    case Kind::kCall: {
      Value function = eval(*expr.parts[0]);
      Arguments arguments = eval_arguments(expr);
      line_ = expr.line;
      return call(function, arguments);
    }
    case Kind::kFilter:
      return eval_filter(expr, nullptr);
    case Kind::kTest: {
      Value value = eval(*expr.parts[0]);
      Arguments arguments = eval_arguments(expr);
      line_ = expr.line;
      return Value::boolean(test(expr.word, value, arguments));
    }
  }
  return {};
}

Arguments Evaluator::eval_arguments(const Expr& expr) {
  Arguments out;
  for (std::size_t i = 1; i < expr.parts.size(); ++i)
    out.positional.push_back(eval(*expr.parts[i]));
  for (const auto& [name, value] : expr.named) {
    for (const auto& [before, held] : out.named) {
      if (before == name) fail("argument '{}' is given twice", name);
    }
    out.named.emplace_back(name, eval(*value));
  }
  return out;
}

// `piped`: what stands where the first of a row of filters has no value.
Value Evaluator::eval_filter(const Expr& expr, const Value* piped) {
  line_ = expr.line;
  charge(1);
  Value value;
  if (!expr.parts[0]) {
    value = *piped;
  } else if (piped != nullptr && expr.parts[0]->kind == Expr::Kind::kFilter) {
    value = eval_filter(*expr.parts[0], piped);
  } else {
    value = eval(*expr.parts[0]);
  }
  Arguments arguments = eval_arguments(expr);
  line_ = expr.line;
  return filter(expr.word, value, arguments);
}

Value Evaluator::eval_binary(const Expr& expr) {
  Value left = eval(*expr.parts[0]);
  if (expr.word == "and") return left.truth() ? eval(*expr.parts[1]) : left;
  if (expr.word == "or") return left.truth() ? left : eval(*expr.parts[1]);
  Value right = eval(*expr.parts[1]);
  line_ = expr.line;
  return binary(*this, expr.word, left, right);
}

bool Evaluator::compare(const std::string& word, const Value& a, const Value& b) {
  charge_comparison(a, b);
  if (word == "==") return equal(a, b);
  if (word == "!=") return !equal(a, b);
  if (word == "<") return less(a, b);
  if (word == ">") return less(b, a);
  if (word == "in") return contains(*this, b, a);
  if (word == "not in") return !contains(*this, b, a);
  // <= and >= of what has an order; NaN has none.
  const bool is_less = less(a, b), is_greater = less(b, a);
  return (word == "<=" ? is_less : is_greater) || (!is_less && !is_greater && equal(a, b));
}

Value Evaluator::eval_compare(const Expr& expr) {
  Value left = eval(*expr.parts[0]);
  for (std::size_t i = 0; i < expr.words.size(); ++i) {
    Value right = eval(*expr.parts[i + 1]);
    line_ = expr.line;
    if (!compare(expr.words[i], left, right)) return Value::boolean(false);
    left = std::move(right);
  }
  return Value::boolean(true);
}

Value Evaluator::eval_slice(const Value& object, const Expr& slice) {
  auto bound = [&](std::size_t i) {
    return slice.parts[i] ? eval(*slice.parts[i]) : Value::none();
  };
  Value begin = bound(0), end = bound(1), step = bound(2);
  if (object.is_undefined()) fail("{}", object.note());
  if (object.is_text()) {
    const Text& text = object.as_text();
    Text out;
    for (std::size_t place : slice_places(text.size(), begin, end, step)) out += text[place];
    charge_text(out.size());
    return Value::text(std::move(out), object.is_safe());
  }
  if (!object.is_sequence()) fail("'{}' object has no slices", object.type_name());
  Values out;
  for (std::size_t place : slice_places(object.items().size(), begin, end, step)) {
    out.push_back(object.items()[place]);
  }
  charge(out.size());
  return object.is(Value::Kind::kList) ? Value::list(std::move(out)) : Value::tuple(std::move(out));
}

Value Evaluator::item(const Value& object, const Value& key) {
  using Kind = Value::Kind;
  charge(key.extent().size);
  if (object.is_undefined()) fail("{}", object.note());
  if (object.is(Kind::kDict)) {
    bool is_key = key.is_none() || key.is_undefined() || key.is_number() || key.is_text() ||
                  key.is(Kind::kTuple) || key.is(Kind::kBigInt);
    const Value* found = is_key ? object.as_dict().find(key) : nullptr;
    if (found != nullptr) return *found;
  }
  if ((object.is_sequence() || object.is_text()) && key.is_integral()) {
    auto size = static_cast<std::int64_t>(object.is_text() ? object.as_text().size()
                                                           : object.items().size());
    std::int64_t at = key.as_int() < 0 ? key.as_int() + size : key.as_int();
    if (at >= 0 && at < size) {
      auto place = static_cast<std::size_t>(at);
      return object.is_text() ? Value::text(Text(1, object.as_text()[place]), object.is_safe())
                              : object.items()[place];
    }
  }
  if (key.is_text()) {
    std::string name = to_utf8(key.as_text());
    Value found = method(object, name);
    if (!found.is_undefined()) return found;
    return Value::undefined(
        fmt::format("'{}' object has no attribute '{}'", object.type_name(), name.substr(0, 100)));
  }
  std::string shown = key.type_name();
  if (!key.is(Kind::kFunction) && !key.is(Kind::kGenerator)) {
    const Text printed = to_repr(key, text_left());
    charge_text(printed.size());
    shown = to_utf8(printed).substr(0, 100);
  }
  return Value::undefined(fmt::format("'{}' object has no element {}", object.type_name(), shown));
}

Value Evaluator::attribute(const Value& object, const std::string& name) {
  using Kind = Value::Kind;
  if (object.is_undefined()) fail("{}", object.note());
  Value found = method(object, name);
  if (!found.is_undefined()) return found;
  if (object.is(Kind::kDict)) {
    if (const Value* held = object.as_dict().find(name)) return *held;
  }
  return Value::undefined(
      fmt::format("'{}' object has no attribute '{}'", object.type_name(), name));
}

}  // namespace stretto::jinja
