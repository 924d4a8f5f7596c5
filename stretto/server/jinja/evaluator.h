// Runs a template's tree. After parser.h; builtins.h has the functions, filters and tests.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "stretto/server/jinja/ast.h"

namespace stretto::jinja {

// What a rendering may cost; TemplateError beyond. A step is about a node of the tree or an item of
// a list; a code point copied counts as one of `max_text`.
struct RenderLimits {
  std::int64_t max_steps = 20'000'000;
  std::int64_t max_text = 256'000'000;
  std::size_t max_one_text = std::size_t{64} << 20;  // no prompt is longer
  int max_calls = 50;  // of macros in macros
};

// Names that a body sees: its own, then those around it.
struct Scope {
  std::shared_ptr<Scope> outer;
  std::vector<std::pair<std::string, Value>> names;

  void set(const std::string& name, Value value);
  const Value* find(const std::string& name) const;  // in outer ones, too
};

class Evaluator {
 public:
  explicit Evaluator(const RenderLimits& limits);
  ~Evaluator();  // breaks the rings that macros and namespaces make
  Evaluator(const Evaluator&) = delete;
  Evaluator& operator=(const Evaluator&) = delete;

  void set_global(const std::string& name, Value value) { scope_->set(name, std::move(value)); }
  // Once. TemplateError with the line.
  Text render(const Statements& statements);

  // For builtins.
  void charge(std::size_t steps);
  void charge_text(std::size_t code_points);
  void charge_comparison(const Value& a, const Value& b) { charge(comparison_cost(a, b)); }
  std::size_t text_left() const { return static_cast<std::size_t>(limits_.max_text - text_); }
  Value call(const Value& function, Arguments& arguments);
  Value filter(const std::string& name, const Value& value, Arguments& arguments);
  bool test(const std::string& name, const Value& value, Arguments& arguments);
  Value attribute(const Value& object, const std::string& name);
  Value item(const Value& object, const Value& key);
  Value make_namespace(Arguments& arguments);
  int line() const { return line_; }

 private:
  enum class Flow : std::uint8_t { kOn, kBreak, kContinue };
  class Inner;

  Flow run(const Statements& statements);
  Flow run(const Statement& statement);
  Flow run_for(const Statement& statement);
  // What it prints, in a scope of its own.
  std::pair<Flow, Text> run_apart(const Statements& body);
  Value macro(const Statement& statement);
  Value call_macro(const Statement& statement, const std::shared_ptr<Scope>& scope,
                   Arguments& arguments);
  void assign(const Target& target, const Value& value);

  Value eval(const Expr& expr);
  Value eval_binary(const Expr& expr);
  Value eval_compare(const Expr& expr);
  Value eval_slice(const Value& object, const Expr& slice);
  Value eval_filter(const Expr& expr, const Value* piped);
  bool compare(const std::string& word, const Value& a, const Value& b);
  Arguments eval_arguments(const Expr& expr);

  RenderLimits limits_;
  std::int64_t steps_ = 0, text_ = 0;
  int calls_ = 0, line_ = 0;
  std::shared_ptr<Scope> scope_;
  Text* out_ = nullptr;
  std::vector<std::shared_ptr<Namespace>> namespaces_;
  std::vector<std::weak_ptr<Scope>> macro_scopes_;
};

// Operators on values, as Python has them. operators.cc.
Value negated(const Value& value);
Value binary(Evaluator& evaluator, const std::string& word, const Value& a, const Value& b);
bool contains(Evaluator& evaluator, const Value& container, const Value& item);
// Which items object[begin:end:step] are: their places. For a size, and bounds that may be none.
std::vector<std::size_t> slice_places(std::size_t size, const Value& begin, const Value& end,
                                      const Value& step);
// "..." % value.
// `escapes`: what is put in, where the format is safe.
Text percent_format(Evaluator& evaluator, const Text& format, const Value& values, bool escapes);
// str() of it.
Text charged_str(Evaluator& evaluator, const Value& value);

}  // namespace stretto::jinja
