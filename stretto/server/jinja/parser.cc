#include "stretto/server/jinja/parser.h"

#include <algorithm>
#include <array>
#include <initializer_list>

#include "stretto/server/jinja/builtins.h"
#include "stretto/server/jinja/error.h"
#include "stretto/server/jinja/expression_parser.h"

namespace stretto::jinja {
namespace {

class Parser : private ExpressionParser {
 public:
  explicit Parser(std::vector<Token> tokens) : ExpressionParser(std::move(tokens)) {}

  Statements parse() {
    Statements out = statements({});
    return out;
  }

 private:
  // Up to a block that begins with one of the words, which stays.
  Statements statements(std::initializer_list<std::string_view> ends) {
    Deeper deeper(*this);
    Statements out;
    for (;;) {
      const int line = now().line;
      num_operators_ = 0;
      if (now().kind == Kind::kEnd) {
        if (ends.size() == 0) return out;
        wrong(fmt::format("the template ends, a block is still open: {} is missing",
                          *(ends.end() - 1)));
      }
      if (now().kind == Kind::kData) {
        out.push_back({.kind = Statement::Kind::kData, .line = line, .text = take().text});
      } else if (now().kind == Kind::kVariableBegin) {
        take();
        out.push_back({.kind = Statement::Kind::kPrint, .line = line, .expr = tuple()});
        if (now().kind != Kind::kVariableEnd) unexpected("'}}'");
        take();
      } else {
        take();  // {%
        if (now().kind != Kind::kName) unexpected("the name of a tag");
        if (std::find(ends.begin(), ends.end(), now().word) != ends.end()) return out;
        out.push_back(block(line));
      }
    }
  }

  Statement block(int line) {
    const std::string tag = take().word;
    Statement out{.kind = Statement::Kind::kIf, .line = line};
    if (tag == "if") {
      parse_if(out);
    } else if (tag == "for") {
      parse_for(out);
    } else if (tag == "set") {
      parse_set(out);
    } else if (tag == "macro") {
      parse_macro(out);
    } else if (tag == "filter") {
      out.kind = Statement::Kind::kFilter;
      out.expr = filters(nullptr, true);
      need_block_end();
      out.body = body("endfilter");
    } else if (tag == "with") {
      parse_with(out);
    } else if (tag == "generation") {
      out.kind = Statement::Kind::kGeneration;
      need_block_end();
      const int loops = std::exchange(loops_, 0);  // a function of its own in jinja2
      out.body = body("endgeneration");
      loops_ = loops;
    } else if (tag == "break" || tag == "continue") {
      if (loops_ == 0) wrong(tag + " outside a loop");
      out.kind = tag == "break" ? Statement::Kind::kBreak : Statement::Kind::kContinue;
      need_block_end();
    } else {
      static constexpr std::array kKnown = {"include", "import", "from",      "extends",
                                            "block",   "call",   "autoescape"};
      bool is_known = std::find(kKnown.begin(), kKnown.end(), tag) != kKnown.end();
      throw TemplateError(
          is_known ? "the tag '" + tag + "' is not supported" : "unknown tag '" + tag + "'", line);
    }
    return out;
  }

  // To the end of the closing tag.
  Statements body(std::string_view end) {
    Statements out = statements({end});
    take();
    need_block_end();
    return out;
  }

  void parse_if(Statement& out) {
    out.expr = tuple(false);
    need_block_end();
    out.body = statements({"elif", "else", "endif"});
    const int line = now().line;
    const std::string word = take().word;
    if (word == "elif") {
      Deeper deeper(*this);
      Statement other{.kind = Statement::Kind::kIf, .line = line};
      parse_if(other);
      out.other.push_back(std::move(other));
      return;
    }
    need_block_end();
    if (word == "else") out.other = body("endif");
  }

  void parse_for(Statement& out) {
    out.kind = Statement::Kind::kFor;
    out.target = target(false);
    if (!skip_name("in")) unexpected("'in'");
    out.expr = tuple(false, true);
    if (skip_name("if")) out.condition = expression();
    if (is_name("recursive")) wrong("recursive loops are not supported");
    need_block_end();
    ++loops_;
    out.body = statements({"else", "endfor"});
    --loops_;
    const bool has_else = take().word == "else";
    need_block_end();
    if (has_else) out.other = body("endfor");
    refuse_loop(out.target);
    refuse_loop_in(out.body);
  }

  void refuse_loop(const Target& target) const {
    if (target.name == "loop" && target.attribute.empty()) {
      wrong("a for may not assign to 'loop'");
    }
    for (const Target& part : target.parts) refuse_loop(part);
  }
  void refuse_loop_in(const Statements& body) const {
    for (const Statement& one : body) {
      if (one.kind == Statement::Kind::kSet || one.kind == Statement::Kind::kSetBlock) {
        refuse_loop(one.target);
      }
      if (one.kind == Statement::Kind::kIf) {
        refuse_loop_in(one.body);
        refuse_loop_in(one.other);
      }
    }
  }

  void parse_set(Statement& out) {
    out.target = target(true);
    if (skip_operator("=")) {
      out.kind = Statement::Kind::kSet;
      out.expr = tuple();
      need_block_end();
      return;
    }
    out.kind = Statement::Kind::kSetBlock;
    if (is_operator("|")) out.expr = filters(nullptr, false);
    need_block_end();
    out.body = body("endset");
  }

  void parse_macro(Statement& out) {
    out.kind = Statement::Kind::kMacro;
    out.name = need_name();
    need_operator("(");
    while (!is_operator(")")) {
      if (!out.parameters.empty()) need_operator(",");
      std::string name = need_name();
      ExprPtr absent;
      if (skip_operator("=")) {
        absent = expression();
      } else if (!out.parameters.empty() && out.parameters.back().second) {
        wrong("a parameter without a default follows one that has one");
      }
      out.parameters.emplace_back(std::move(name), std::move(absent));
    }
    take();
    need_block_end();
    const int loops = std::exchange(loops_, 0);
    out.body = body("endmacro");
    loops_ = loops;
  }

  void parse_with(Statement& out) {
    out.kind = Statement::Kind::kWith;
    while (now().kind != Kind::kBlockEnd) {
      if (!out.parameters.empty()) need_operator(",");
      std::string name = need_name();
      need_operator("=");
      out.parameters.emplace_back(std::move(name), expression());
    }
    take();
    out.body = body("endwith");
  }

  Target target(bool with_attribute) {
    Target first = one_target(with_attribute);
    if (!is_operator(",")) return first;
    Target out{.is_list = true};
    out.parts.push_back(std::move(first));
    while (skip_operator(",")) {
      if (is_name("in") || is_operator("=") || now().kind == Kind::kBlockEnd) break;
      out.parts.push_back(one_target(with_attribute));
    }
    return out;
  }

  Target one_target(bool with_attribute) {
    Deeper deeper(*this);
    if (skip_operator("(")) {
      Target inner = target(with_attribute);
      need_operator(")");
      return inner;
    }
    const std::string name = need_name();
    static constexpr std::array kFixed = {"true", "false", "none", "True", "False", "None"};
    if (std::find(kFixed.begin(), kFixed.end(), name) != kFixed.end()) {
      wrong("cannot assign to '" + name + "'");
    }
    Target out{.name = name};
    if (with_attribute && skip_operator(".")) out.attribute = need_name();
    return out;
  }

  int loops_ = 0;
};

// Filters and tests that are not there, as early as jinja2 says it: where no condition decides
// whether they are met.
void check_names(const Statements& body, bool in_condition);

// Whether jinja2 works this out when it reads the template: neither names nor calls are in it, nor
// filters that ask the template's context.
bool is_constant(const Expr& expr) {
  static constexpr std::array kOfContext = {"map",    "random",     "reject",
                                            "select", "rejectattr", "selectattr"};
  if (expr.kind == Expr::Kind::kName || expr.kind == Expr::Kind::kCall) return false;
  if (expr.kind == Expr::Kind::kFilter &&
      std::find(kOfContext.begin(), kOfContext.end(), expr.word) != kOfContext.end()) {
    return false;
  }
  auto holds = [](const ExprPtr& part) { return part == nullptr || is_constant(*part); };
  return std::all_of(expr.parts.begin(), expr.parts.end(), holds) &&
         std::all_of(expr.named.begin(), expr.named.end(),
                     [&](const auto& named) { return holds(named.second); });
}

// Whether jinja2 may know beforehand that nobody looks at the right side.
bool is_folded_choice(const Expr& expr) {
  return expr.kind == Expr::Kind::kBinary && (expr.word == "and" || expr.word == "or") &&
         is_constant(*expr.parts[0]);
}

void check_names(const Expr* expr, bool in_condition) {
  if (expr == nullptr) return;
  if (!in_condition) {
    bool is_unknown = (expr->kind == Expr::Kind::kFilter && !is_filter(expr->word)) ||
                      (expr->kind == Expr::Kind::kTest && !is_test(expr->word));
    const char* what = expr->kind == Expr::Kind::kFilter ? "filter" : "test";
    if (is_unknown) {
      throw TemplateError(fmt::format("No {} named '{}'", what, expr->word), expr->line);
    }
  }
  const bool inner = in_condition || expr->kind == Expr::Kind::kCondition;
  const bool is_folded = is_folded_choice(*expr);
  for (std::size_t i = 0; i < expr->parts.size(); ++i) {
    check_names(expr->parts[i].get(), inner || (is_folded && i > 0));
  }
  for (const auto& [name, value] : expr->named) check_names(value.get(), inner);
}

void check_names(const Statements& body, bool in_condition) {
  for (const Statement& one : body) {
    const bool inner = one.kind == Statement::Kind::kIf;
    check_names(one.expr.get(), inner || in_condition);
    check_names(one.condition.get(), false);
    for (const auto& [name, value] : one.parameters) check_names(value.get(), false);
    check_names(one.body, inner);
    check_names(one.other, inner);
  }
}

}  // namespace

Statements parse(std::vector<Token> tokens) {
  Statements out = Parser(std::move(tokens)).parse();
  check_names(out, false);
  return out;
}

}  // namespace stretto::jinja
