#include "stretto/server/jinja/evaluator.h"

#include <algorithm>
#include <utility>

#include "stretto/server/jinja/builtins.h"
#include "stretto/server/jinja/error.h"

namespace stretto::jinja {

void Scope::set(const std::string& name, Value value) {
  for (auto& [own, held] : names) {
    if (own == name) {
      held = std::move(value);
      return;
    }
  }
  constexpr std::size_t kMost = 4096;  // they are looked for one by one
  if (names.size() >= kMost) fail("has more than {} names", kMost);
  names.emplace_back(name, std::move(value));
}

const Value* Scope::find(const std::string& name) const {
  for (const Scope* scope = this; scope != nullptr; scope = scope->outer.get()) {
    for (const auto& [own, held] : scope->names) {
      if (own == name) return &held;
    }
  }
  return nullptr;
}

// A scope inside the current one, or another, as long as this stands.
class Evaluator::Inner {
 public:
  Inner(Evaluator& evaluator, const std::shared_ptr<Scope>& outer)
      : evaluator_(evaluator), before_(evaluator.scope_) {
    evaluator.scope_ = std::make_shared<Scope>(Scope{.outer = outer});
  }
  explicit Inner(Evaluator& evaluator) : Inner(evaluator, evaluator.scope_) {}
  ~Inner() { evaluator_.scope_ = before_; }
  Inner(const Inner&) = delete;
  Inner& operator=(const Inner&) = delete;

 private:
  Evaluator& evaluator_;
  std::shared_ptr<Scope> before_;
};

Evaluator::Evaluator(const RenderLimits& limits)
    : limits_(limits), scope_(std::make_shared<Scope>()) {
  add_functions(*this);
}

Evaluator::~Evaluator() {
  for (const auto& scope : macro_scopes_) {
    if (auto held = scope.lock()) held->names.clear();
  }
  for (const auto& space : namespaces_) space->attributes.clear();
}

void Evaluator::charge(std::size_t steps) {
  steps_ += static_cast<std::int64_t>(std::min(steps, std::size_t{1} << 40));
  if (steps_ > limits_.max_steps) fail("takes more than {} steps", limits_.max_steps);
}

void Evaluator::charge_text(std::size_t code_points) {
  text_ += static_cast<std::int64_t>(std::min(code_points, std::size_t{1} << 40));
  if (code_points > limits_.max_one_text) {
    fail("makes a text of more than {} characters", limits_.max_one_text);
  }
  if (text_ > limits_.max_text) fail("makes more than {} characters", limits_.max_text);
}

Text Evaluator::render(const Statements& statements) {
  Text out;
  out_ = &out;
  try {
    run(statements);
  } catch (const TemplateError& e) {
    throw TemplateError(e.what(), e.line() != 0 ? e.line() : line_);
  }
  return out;
}

Evaluator::Flow Evaluator::run(const Statements& statements) {
  for (const Statement& statement : statements) {
    Flow flow = run(statement);
    if (flow != Flow::kOn) return flow;
  }
  return Flow::kOn;
}

Evaluator::Flow Evaluator::run(const Statement& statement) {
  using Kind = Statement::Kind;
  line_ = statement.line;
  charge(1);
  auto print = [&](const Text& text) {
    charge_text(text.size());
    *out_ += text;
  };
  switch (statement.kind) {
    case Kind::kData:
      print(statement.text);
      return Flow::kOn;
    case Kind::kPrint:
      print(to_str(eval(*statement.expr), text_left()));
      return Flow::kOn;
    case Kind::kIf:
      return run(eval(*statement.expr).truth() ? statement.body : statement.other);
    case Kind::kFor:
      return run_for(statement);
    case Kind::kSet:
      assign(statement.target, eval(*statement.expr));
      return Flow::kOn;
    case Kind::kSetBlock: {
      auto [flow, printed] = run_apart(statement.body);
      if (flow != Flow::kOn) return flow;
      Value text = Value::text(std::move(printed));
      assign(statement.target, statement.expr ? eval_filter(*statement.expr, &text) : text);
      return Flow::kOn;
    }
    case Kind::kMacro:
      scope_->set(statement.name, macro(statement));
      return Flow::kOn;
    case Kind::kFilter: {
      auto [flow, printed] = run_apart(statement.body);
      if (flow != Flow::kOn) return flow;
      Value text = Value::text(std::move(printed));
      print(to_str(eval_filter(*statement.expr, &text), text_left()));
      return Flow::kOn;
    }
    case Kind::kWith: {
      std::vector<std::pair<std::string, Value>> values;
      for (const auto& [name, expr] : statement.parameters) values.emplace_back(name, eval(*expr));
      Inner inner(*this);
      for (auto& [name, value] : values) scope_->set(name, std::move(value));
      return run(statement.body);
    }
    case Kind::kGeneration:
      print(run_apart(statement.body).second);
      return Flow::kOn;
    case Kind::kBreak:
      return Flow::kBreak;
    case Kind::kContinue:
      return Flow::kContinue;
  }
  return Flow::kOn;
}

Evaluator::Flow Evaluator::run_for(const Statement& statement) {
  Values items = to_items(eval(*statement.expr));
  charge(items.size());
  if (statement.condition) {
    Values kept;
    for (const Value& item : items) {
      Inner inner(*this);
      assign(statement.target, item);
      if (eval(*statement.condition).truth()) kept.push_back(item);
    }
    items = std::move(kept);
  }
  // The loop may outlive the run of this function, in a namespace.
  struct Held {
    Values items;
    Loop loop;
  };
  auto held = std::make_shared<Held>(Held{std::move(items), {}});
  std::shared_ptr<Loop> loop(held, &held->loop);
  loop->items = &held->items;
  bool has_run = false;
  for (loop->at = 0; loop->at < held->items.size(); ++loop->at) {
    Inner inner(*this);
    scope_->set("loop", Value::of(loop));
    assign(statement.target, held->items[loop->at]);
    const Flow flow = run(statement.body);
    if (flow == Flow::kBreak) break;
    has_run |= flow == Flow::kOn;  // as in jinja2, where a continue does not count
    line_ = statement.line;
  }
  if (has_run || statement.other.empty()) return Flow::kOn;
  Inner inner(*this);
  return run(statement.other);
}

std::pair<Evaluator::Flow, Text> Evaluator::run_apart(const Statements& body) {
  Inner inner(*this);
  Text printed;
  Text* before = std::exchange(out_, &printed);
  Flow flow = Flow::kOn;
  try {
    flow = run(body);
  } catch (...) {
    out_ = before;
    throw;
  }
  out_ = before;
  return {flow, std::move(printed)};
}

Value Evaluator::macro(const Statement& statement) {
  std::weak_ptr<Scope> weak = scope_;
  macro_scopes_.push_back(weak);
  charge(16);
  return Value::function(statement.name,
                         [&statement, scope = scope_](Evaluator& evaluator, Arguments& arguments) {
                           return evaluator.call_macro(statement, scope, arguments);
                         });
}

Value Evaluator::call_macro(const Statement& statement, const std::shared_ptr<Scope>& scope,
                            Arguments& arguments) {
  if (calls_ >= limits_.max_calls) fail("macros call each other more than {} deep", calls_);
  Inner inner(*this, scope);
  const auto& parameters = statement.parameters;
  Values more;
  for (std::size_t i = 0; i < arguments.positional.size(); ++i) {
    if (i < parameters.size()) {
      scope_->set(parameters[i].first, arguments.positional[i]);
    } else {
      more.push_back(arguments.positional[i]);
    }
  }
  Dict named;
  for (const auto& [name, value] : arguments.named) {
    auto at = std::find_if(parameters.begin(), parameters.end(),
                           [&, &own = name](const auto& p) { return p.first == own; });
    if (at == parameters.end()) {
      named.set(Value::text(name), value);
    } else if (static_cast<std::size_t>(at - parameters.begin()) < arguments.positional.size()) {
      fail("macro '{}' got '{}' twice", statement.name, name);
    } else {
      scope_->set(name, value);
    }
  }
  const bool takes_more = uses_name(statement.body, "varargs");
  const bool takes_named = uses_name(statement.body, "kwargs");
  if (!more.empty() && !takes_more) {
    fail("macro '{}' takes not more than {} argument(s)", statement.name, parameters.size());
  }
  if (!named.items.empty() && !takes_named) {
    fail("macro '{}' takes no argument '{}'", statement.name,
         to_utf8(named.items.front().first.as_text()));
  }
  if (takes_more) scope_->set("varargs", Value::tuple(std::move(more)));
  if (takes_named) scope_->set("kwargs", Value::dict(std::move(named)));
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const std::string& name = parameters[i].first;
    if (i < arguments.positional.size()) continue;
    bool is_given = std::any_of(arguments.named.begin(), arguments.named.end(),
                                [&](const auto& given) { return given.first == name; });
    if (is_given) continue;
    scope_->set(name, parameters[i].second
                          ? eval(*parameters[i].second)
                          : Value::undefined(fmt::format("parameter '{}' was not provided", name)));
  }
  ++calls_;
  const int line = line_;
  Text printed;
  Text* before = std::exchange(out_, &printed);
  auto restore = [&] {
    out_ = before;
    --calls_;
  };
  try {
    run(statement.body);
  } catch (...) {
    restore();
    throw;
  }
  restore();
  line_ = line;
  return Value::text(std::move(printed));
}

void Evaluator::assign(const Target& target, const Value& value) {
  if (target.is_list) {
    Values items = to_items(value);
    if (items.size() != target.parts.size()) {
      fail("{} values for {} names", items.size(), target.parts.size());
    }
    for (std::size_t i = 0; i < items.size(); ++i) assign(target.parts[i], items[i]);
    return;
  }
  if (target.attribute.empty()) return scope_->set(target.name, value);
  const Value* space = scope_->find(target.name);
  if (space == nullptr || !space->is(Value::Kind::kNamespace)) {
    fail("cannot assign to an attribute of '{}': it is no namespace", target.name);
  }
  space->as_namespace().set(target.attribute, value);
}

Value Evaluator::make_namespace(Arguments& arguments) {
  charge(64);
  auto space = std::make_shared<Namespace>();
  namespaces_.push_back(space);
  if (arguments.positional.size() > 1) fail("namespace takes one dict");
  for (const Value& dict : arguments.positional) {
    if (!dict.is(Value::Kind::kDict)) fail("namespace takes a dict, not {}", dict.type_name());
    const std::size_t count = dict.as_dict().items.size();
    charge(count * count);  // names are looked for one by one
    for (const auto& [key, value] : dict.as_dict().items) space->set(to_name(key), value);
  }
  for (auto& [name, value] : arguments.named) space->set(name, std::move(value));
  return Value::of(space);
}

Value Evaluator::call(const Value& function, Arguments& arguments) {
  if (function.is_undefined()) fail("{}", function.note());
  if (!function.is(Value::Kind::kFunction))
    fail("'{}' object is not callable", function.type_name());
  Value kept = function;  // the call may assign to where it came from
  return kept.as_function().call(*this, arguments);
}

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
