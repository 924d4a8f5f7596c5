#include <fmt/chrono.h>

#include <algorithm>
#include <ctime>

#include "stretto/server/jinja/builtins.h"
#include "stretto/server/jinja/error.h"

namespace stretto::jinja {
namespace {

constexpr std::int64_t kMostRange = 100'000;  // of jinja2's sandbox

Value range(Evaluator& evaluator, Arguments& arguments) {
  const Values& given = arguments.positional;
  if (given.empty() || given.size() > 3 || !arguments.named.empty())
    fail("range takes 1 to 3 numbers");
  for (const Value& value : given) {
    if (!value.is_integral()) fail("range takes whole numbers, not {}", value.type_name());
  }
  const std::int64_t from = given.size() > 1 ? given[0].as_int() : 0;
  const std::int64_t to = given[given.size() > 1 ? 1 : 0].as_int();
  const std::int64_t by = given.size() > 2 ? given[2].as_int() : 1;
  if (by == 0) fail("range: the step may not be zero");
  Values out;
  for (__int128 at = from; by > 0 ? at < to : at > to; at += by) {
    if (static_cast<std::int64_t>(out.size()) >= kMostRange) {
      fail("Range too big. The sandbox blocks ranges larger than MAX_RANGE ({}).", kMostRange);
    }
    out.push_back(Value::integer(static_cast<std::int64_t>(at)));
  }
  evaluator.charge(out.size());
  return Value::list(std::move(out));
}

Value dict(Evaluator& evaluator, Arguments& arguments) {
  Dict out;
  if (arguments.positional.size() > 1) fail("dict takes one dict");
  for (const Value& given : arguments.positional) {
    if (given.is(Value::Kind::kDict)) {
      evaluator.charge(given.extent().size);
      for (const auto& [key, value] : given.as_dict().items) out.set(key, value);
      continue;
    }
    for (const Value& pair : to_items(given)) {
      Values items = to_items(pair);
      for (const Value& item : items) evaluator.charge(item.extent().size);
      if (items.size() != 2) fail("dict takes pairs");
      out.set(items[0], items[1]);
    }
  }
  for (auto& [name, value] : arguments.named) out.set(Value::text(name), std::move(value));
  return Value::dict(std::move(out));
}

Value raise_exception(Evaluator& evaluator, Arguments& arguments) {
  Given given("raise_exception", arguments, {"message"}, 1);
  throw TemplateError(to_utf8(charged_str(evaluator, given[0])).substr(0, 2000));
}

// What a hidden namespace remembers between calls: joiner and cycler of jinja2.
Value joiner(Evaluator& evaluator, Arguments& arguments) {
  Given given("joiner", arguments, {"sep"});
  Arguments none;
  Value memory = evaluator.make_namespace(none);
  Value separator = given.has(0) ? given[0] : Value::text(U", ");
  return Value::function("joiner", [memory, separator](Evaluator&, Arguments&) {
    if (memory.as_namespace().find("used") != nullptr) return separator;
    memory.as_namespace().set("used", Value::boolean(true));
    return Value::text(Text());
  });
}

Value strftime_now(Evaluator&, Arguments& arguments) {
  Given given("strftime_now", arguments, {"format"}, 1);
  const std::string format = to_utf8(given.need_text(0));
  if (format.empty()) return Value::text(Text());
  std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  std::string out(4096, '\0');
  std::size_t size = std::strftime(out.data(), out.size(), format.c_str(), &local);
  if (size == 0) fail("strftime_now: the format is too long, or prints nothing");
  out.resize(size);
  return Value::text(out);
}

bool uses_name_in(const Expr* expr, const std::string& name) {
  if (expr == nullptr) return false;
  if (expr->kind == Expr::Kind::kName && expr->word == name) return true;
  return std::any_of(expr->parts.begin(), expr->parts.end(),
                     [&](const ExprPtr& part) { return uses_name_in(part.get(), name); }) ||
         std::any_of(expr->named.begin(), expr->named.end(),
                     [&](const auto& part) { return uses_name_in(part.second.get(), name); });
}

}  // namespace

bool uses_name(const Statements& body, const std::string& name) {
  return std::any_of(body.begin(), body.end(), [&](const Statement& one) {
    if (uses_name_in(one.expr.get(), name) || uses_name_in(one.condition.get(), name)) return true;
    for (const auto& [parameter, expr] : one.parameters) {
      if (uses_name_in(expr.get(), name)) return true;
    }
    return uses_name(one.body, name) || uses_name(one.other, name);
  });
}

void add_functions(Evaluator& evaluator) {
  auto add = [&](const char* name, Value (*call)(Evaluator&, Arguments&)) {
    evaluator.set_global(name, Value::function(name, call));
  };
  add("range", range);
  add("dict", dict);
  add("raise_exception", raise_exception);
  add("strftime_now", strftime_now);
  add("joiner", joiner);
  add("namespace", [](Evaluator& e, Arguments& arguments) { return e.make_namespace(arguments); });
}

Given::Given(const std::string& function, Arguments& arguments,
             std::initializer_list<const char*> names, std::size_t num_required)
    : function_(function), names_(names), values_(names.size()), is_given_(names.size(), false) {
  if (arguments.positional.size() > names_.size()) {
    fail("{} takes {} argument(s), got {}", function_, names_.size(), arguments.positional.size());
  }
  for (std::size_t i = 0; i < arguments.positional.size(); ++i) {
    values_[i] = arguments.positional[i];
    is_given_[i] = true;
  }
  for (const auto& [name, value] : arguments.named) {
    auto at = std::find(names_.begin(), names_.end(), name);
    if (at == names_.end()) fail("{} takes no argument '{}'", function_, name);
    auto i = static_cast<std::size_t>(at - names_.begin());
    if (is_given_[i]) fail("{} got '{}' twice", function_, name);
    values_[i] = value;
    is_given_[i] = true;
  }
  for (std::size_t i = 0; i < num_required; ++i) {
    if (!is_given_[i]) fail("{} needs '{}'", function_, names_[i]);
  }
}

std::int64_t Given::integer(std::size_t i, std::int64_t absent) const {
  if (!has(i)) return absent;
  if (!values_[i].is_integral()) {
    fail("{}: '{}' has to be a whole number, not {}", function_, names_[i], values_[i].type_name());
  }
  return values_[i].as_int();
}

Text Given::text(std::size_t i, TextView absent) const {
  if (!has(i)) return Text(absent);
  return values_[i].is_text() ? values_[i].as_text() : to_text(to_name(values_[i]));
}

const Text& Given::need_text(std::size_t i) const {
  if (!has(i) || !values_[i].is_text()) {
    fail("{}: '{}' has to be a text, not {}", function_, names_[i], values_[i].type_name());
  }
  return values_[i].as_text();
}

}  // namespace stretto::jinja
