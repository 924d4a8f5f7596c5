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

}  // namespace stretto::jinja
