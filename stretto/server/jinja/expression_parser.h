// Expressions of templates, by jinja2's grammar; parser.cc has the statements around them.
#pragma once

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "stretto/server/jinja/ast.h"
#include "stretto/server/jinja/error.h"
#include "stretto/server/jinja/lexer.h"

namespace stretto::jinja {

class ExpressionParser {
 protected:
  using Kind = Token::Kind;
  static constexpr int kMostNested = 150;
  static constexpr int kMostOperators = 1000;

  explicit ExpressionParser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  // Nesting is bounded, and with it the recursion over the tree.
  class Deeper {
   public:
    explicit Deeper(ExpressionParser& parser) : parser_(parser) {
      if (++parser_.nested_ > kMostNested) parser_.wrong("is nested too deep");
    }
    ~Deeper() { --parser_.nested_; }
    Deeper(const Deeper&) = delete;
    Deeper& operator=(const Deeper&) = delete;

   private:
    ExpressionParser& parser_;
  };

  const Token& now() const { return tokens_[at_]; }
  const Token& after() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  Token take() { return at_ + 1 < tokens_.size() ? std::move(tokens_[at_++]) : tokens_[at_]; }
  bool is_operator(std::string_view word) const {
    return now().kind == Kind::kOperator && now().word == word;
  }
  bool is_name(std::string_view word) const {
    return now().kind == Kind::kName && now().word == word;
  }
  bool skip_operator(std::string_view word) {
    bool is = is_operator(word);
    if (is) take();
    return is;
  }
  bool skip_name(std::string_view word) {
    bool is = is_name(word);
    if (is) take();
    return is;
  }
  [[noreturn]] void wrong(const std::string& what) const { throw TemplateError(what, now().line); }
  [[noreturn]] void unexpected(const std::string& wanted) const {
    static constexpr std::array kNames = {"text",     "'{{'", "'}}'", "'{%'", "'%}'",   "",
                                          "a string", "",     "",     "",     "the end"};
    std::string got =
        now().word.empty() ? kNames[static_cast<std::size_t>(now().kind)] : "'" + now().word + "'";
    wrong(fmt::format("need {}, got {}", wanted, got));
  }
  void need_operator(std::string_view word) {
    if (!skip_operator(word)) unexpected(fmt::format("'{}'", word));
  }
  std::string need_name() {
    if (now().kind != Kind::kName) unexpected("a name");
    return take().word;
  }
  void need_block_end() {
    if (now().kind != Kind::kBlockEnd) unexpected("'%}'");
    take();
  }
  ExprPtr make(Expr::Kind kind, int line) const {
    return std::make_unique<Expr>(Expr{.kind = kind, .line = line});
  }

  // With commas outside brackets.
  ExprPtr tuple(bool with_condition = true, bool ends_at_recursive = false,
                bool in_brackets = false) {
    const int line = now().line;
    std::vector<ExprPtr> parts;
    bool is_tuple = false;
    auto ends = [&] {
      return now().kind == Kind::kVariableEnd || now().kind == Kind::kBlockEnd ||
             is_operator(")") || (ends_at_recursive && is_name("recursive"));
    };
    for (;;) {
      if (ends()) break;
      parts.push_back(with_condition ? expression() : disjunction());
      if (!skip_operator(",")) break;
      is_tuple = true;
    }
    if (!is_tuple && !parts.empty()) return std::move(parts.front());
    if (!is_tuple && !in_brackets) unexpected("an expression");
    ExprPtr out = make(Expr::Kind::kTuple, line);
    out->parts = std::move(parts);
    return out;
  }

  ExprPtr expression() {
    Deeper deeper(*this);
    ExprPtr value = disjunction();
    while (is_name("if")) {
      ExprPtr out = make(Expr::Kind::kCondition, take().line);
      out->parts.push_back(std::move(value));
      out->parts.push_back(disjunction());
      out->parts.push_back(skip_name("else") ? expression() : nullptr);
      value = std::move(out);
      grown();
    }
    return value;
  }

  // Rows of operators make the tree deep without any bracket.
  void grown() const {
    if (++num_operators_ > kMostOperators) wrong("has too many operators in one tag");
  }

  ExprPtr binary(ExprPtr left, const Token& word, ExprPtr right) const {
    grown();
    ExprPtr out = make(Expr::Kind::kBinary, word.line);
    out->word = word.word;
    out->parts.push_back(std::move(left));
    out->parts.push_back(std::move(right));
    return out;
  }

  ExprPtr disjunction() {
    ExprPtr out = conjunction();
    while (is_name("or")) {
      Token word = take();
      out = binary(std::move(out), word, conjunction());
    }
    return out;
  }
  ExprPtr conjunction() {
    ExprPtr out = negation();
    while (is_name("and")) {
      Token word = take();
      out = binary(std::move(out), word, negation());
    }
    return out;
  }
  ExprPtr negation() {
    if (!is_name("not")) return comparison();
    Deeper deeper(*this);
    ExprPtr out = make(Expr::Kind::kUnary, now().line);
    out->word = take().word;
    out->parts.push_back(negation());
    return out;
  }

  ExprPtr comparison() {
    ExprPtr first = sum();
    ExprPtr out;
    for (;;) {
      std::string word;
      static constexpr std::array kWords = {"==", "!=", "<", "<=", ">", ">="};
      if (now().kind == Kind::kOperator &&
          std::find(kWords.begin(), kWords.end(), now().word) != kWords.end()) {
        word = take().word;
      } else if (skip_name("in")) {
        word = "in";
      } else if (is_name("not") && after().kind == Kind::kName && after().word == "in") {
        take();
        take();
        word = "not in";
      } else {
        return out ? std::move(out) : std::move(first);
      }
      if (!out) {
        out = make(Expr::Kind::kCompare, now().line);
        out->parts.push_back(std::move(first));
      }
      out->words.push_back(std::move(word));
      out->parts.push_back(sum());
    }
  }

  ExprPtr sum() {
    ExprPtr out = concatenation();
    while (is_operator("+") || is_operator("-")) {
      Token word = take();
      out = binary(std::move(out), word, concatenation());
    }
    return out;
  }
  ExprPtr concatenation() {
    ExprPtr first = product();
    if (!is_operator("~")) return first;
    ExprPtr out = make(Expr::Kind::kConcat, now().line);
    out->parts.push_back(std::move(first));
    while (skip_operator("~")) out->parts.push_back(product());
    return out;
  }
  ExprPtr product() {
    ExprPtr out = power();
    while (is_operator("*") || is_operator("/") || is_operator("//") || is_operator("%")) {
      Token word = take();
      out = binary(std::move(out), word, power());
    }
    return out;
  }
  ExprPtr power() {
    ExprPtr out = unary(true);
    while (is_operator("**")) {
      Token word = take();
      out = binary(std::move(out), word, unary(true));
    }
    return out;
  }

  ExprPtr unary(bool with_filters) {
    ExprPtr out;
    if (is_operator("-") || is_operator("+")) {
      Deeper deeper(*this);
      out = make(Expr::Kind::kUnary, now().line);
      out->word = take().word;
      out->parts.push_back(unary(false));
    } else {
      out = primary();
    }
    out = postfix(std::move(out));
    return with_filters ? filters(std::move(out), false) : std::move(out);
  }

  ExprPtr constant(Value value, int line) const {
    ExprPtr out = make(Expr::Kind::kConstant, line);
    out->constant = std::move(value);
    return out;
  }

  ExprPtr primary() {
    Deeper deeper(*this);
    const int line = now().line;
    switch (now().kind) {
      case Kind::kName: {
        const std::string word = take().word;
        if (word == "true" || word == "True") return constant(Value::boolean(true), line);
        if (word == "false" || word == "False") return constant(Value::boolean(false), line);
        if (word == "none" || word == "None") return constant(Value::none(), line);
        ExprPtr out = make(Expr::Kind::kName, line);
        out->word = word;
        return out;
      }
      case Kind::kString: {
        Text text = take().text;
        while (now().kind == Kind::kString) text += take().text;
        return constant(Value::text(std::move(text)), line);
      }
      case Kind::kInteger:
        return constant(integer(take().word), line);
      case Kind::kFloat: {
        std::string word = take().word;
        std::erase(word, '_');
        return constant(Value::number(std::strtod(word.c_str(), nullptr)), line);
      }
      case Kind::kOperator:
        if (skip_operator("(")) {
          ExprPtr out = tuple(true, false, true);
          need_operator(")");
          return out;
        }
        if (is_operator("[")) return list();
        if (is_operator("{")) return dict();
        break;
      default:
        break;
    }
    unexpected("an expression");
  }

  Value integer(std::string word) const {
    std::erase(word, '_');
    int base = 10;
    std::string_view digits = word;
    if (digits.size() > 2 && digits[0] == '0') {
      const char sort = static_cast<char>(digits[1] | 0x20);
      base = sort == 'b' ? 2 : sort == 'o' ? 8 : sort == 'x' ? 16 : 10;
      if (base != 10) digits.remove_prefix(2);
    }
    std::int64_t value = 0;
    auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value, base);
    if (error != std::errc() || end != digits.data() + digits.size()) {
      wrong("the number " + word + " is too large");
    }
    return Value::integer(value);
  }

  ExprPtr list() {
    ExprPtr out = make(Expr::Kind::kList, take().line);
    while (!is_operator("]")) {
      if (!out->parts.empty()) need_operator(",");
      if (is_operator("]")) break;
      out->parts.push_back(expression());
    }
    take();
    return out;
  }
  ExprPtr dict() {
    ExprPtr out = make(Expr::Kind::kDict, take().line);
    while (!is_operator("}")) {
      if (!out->parts.empty()) need_operator(",");
      if (is_operator("}")) break;
      out->parts.push_back(expression());
      need_operator(":");
      out->parts.push_back(expression());
    }
    take();
    return out;
  }

  ExprPtr postfix(ExprPtr value) {
    for (;;) {
      if (is_operator(".")) {
        value = attribute(std::move(value));
      } else if (is_operator("[")) {
        value = item(std::move(value));
      } else if (is_operator("(")) {
        value = call(std::move(value));
      } else {
        return value;
      }
      grown();
    }
  }

  ExprPtr attribute(ExprPtr value) {
    const int line = take().line;
    if (now().kind == Kind::kInteger) {  // a.0
      ExprPtr out = make(Expr::Kind::kItem, line);
      out->parts.push_back(std::move(value));
      out->parts.push_back(constant(integer(take().word), line));
      return out;
    }
    ExprPtr out = make(Expr::Kind::kAttribute, line);
    out->parts.push_back(std::move(value));
    out->word = need_name();
    return out;
  }

  ExprPtr item(ExprPtr value) {
    ExprPtr out = make(Expr::Kind::kItem, take().line);
    out->parts.push_back(std::move(value));
    std::vector<ExprPtr> keys;
    while (!is_operator("]")) {
      if (!keys.empty()) need_operator(",");
      keys.push_back(subscript());
    }
    if (keys.empty()) unexpected("an index");
    take();
    if (keys.size() == 1) {
      out->parts.push_back(std::move(keys.front()));
    } else {
      ExprPtr tuple = make(Expr::Kind::kTuple, out->line);
      tuple->parts = std::move(keys);
      out->parts.push_back(std::move(tuple));
    }
    return out;
  }

  ExprPtr subscript() {
    const int line = now().line;
    std::vector<ExprPtr> parts;
    if (is_operator(":")) {
      parts.push_back(nullptr);
    } else {
      ExprPtr first = expression();
      if (!is_operator(":")) return first;
      parts.push_back(std::move(first));
    }
    while (parts.size() < 3 && skip_operator(":")) {
      bool is_absent = is_operator(":") || is_operator("]") || is_operator(",");
      parts.push_back(is_absent ? nullptr : expression());
    }
    parts.resize(3);
    ExprPtr out = make(Expr::Kind::kSlice, line);
    out->parts = std::move(parts);
    return out;
  }

  // (a, b, c=d) behind a call, a filter or a test.
  void arguments(Expr& out) {
    need_operator("(");
    bool is_first = true;
    while (!is_operator(")")) {
      if (!std::exchange(is_first, false)) {
        need_operator(",");
        if (is_operator(")")) break;
      }
      if (is_operator("*") || is_operator("**")) wrong("* in arguments is not supported");
      if (now().kind == Kind::kName && after().kind == Kind::kOperator && after().word == "=") {
        std::string name = take().word;
        take();
        out.named.emplace_back(std::move(name), expression());
      } else {
        if (!out.named.empty()) wrong("an argument without a name follows one that has one");
        out.parts.push_back(expression());
      }
    }
    take();
  }

  ExprPtr call(ExprPtr value) {
    ExprPtr out = make(Expr::Kind::kCall, now().line);
    out->parts.push_back(std::move(value));
    arguments(*out);
    return out;
  }

  // a | b(c) is d ...; of a filter block or a set block without the first.
  ExprPtr filters(ExprPtr value, bool begins_inline) {
    for (;;) {
      if (begins_inline || is_operator("|")) {
        if (!std::exchange(begins_inline, false)) take();
        ExprPtr out = make(Expr::Kind::kFilter, now().line);
        out->word = dotted_name();
        out->parts.push_back(std::move(value));
        if (is_operator("(")) arguments(*out);
        value = std::move(out);
      } else if (value && is_name("is")) {
        value = test(std::move(value));
      } else if (value && is_operator("(")) {
        value = call(std::move(value));  // of what a filter gave
      } else {
        return value;
      }
      grown();
    }
  }

  std::string dotted_name() {
    std::string name = need_name();
    while (skip_operator(".")) name += "." + need_name();
    return name;
  }

  ExprPtr test(ExprPtr value) {
    const int line = take().line;
    const bool is_negated = skip_name("not");
    ExprPtr out = make(Expr::Kind::kTest, line);
    out->word = dotted_name();
    out->parts.push_back(std::move(value));
    const bool is_word = is_name("else") || is_name("or") || is_name("and");
    const bool begins = now().kind == Kind::kName || now().kind == Kind::kString ||
                        now().kind == Kind::kInteger || now().kind == Kind::kFloat ||
                        is_operator("[") || is_operator("{");
    if (is_operator("(")) {
      arguments(*out);
    } else if (begins && !is_word) {
      if (is_name("is")) wrong("tests with 'is' do not follow each other");
      out->parts.push_back(postfix(primary()));
    }
    if (!is_negated) return out;
    ExprPtr negated = make(Expr::Kind::kUnary, line);
    negated->word = "not";
    negated->parts.push_back(std::move(out));
    return negated;
  }

  std::vector<Token> tokens_;
  std::size_t at_ = 0;
  int nested_ = 0;
  mutable int num_operators_ = 0;  // of this tag
};

}  // namespace stretto::jinja
