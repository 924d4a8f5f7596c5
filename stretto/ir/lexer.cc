#include "stretto/ir/lexer.h"

#include <fmt/format.h>

#include <array>
#include <charconv>

#include "stretto/base/errors.h"
#include "stretto/base/printable.h"
#include "stretto/ir/text_form.h"

namespace stretto {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

constexpr std::array<std::string_view, 5> kLongMarks = {"<=", ">=", "==", "&&", "||"};
constexpr std::string_view kMarks = "[](){},:=<+-*/%!";

}  // namespace

void Lexer::fail(const Token& at, const std::string& what) const {
  throw UserError(fmt::format("{}:{}:{}: {}", where_, at.line, at.column, what));
}

void Lexer::advance(std::size_t num_bytes) {
  for (std::size_t i = 0; i < num_bytes; ++i) {
    bool newline = source_[pos_++] == '\n';
    line_ += newline ? 1 : 0;
    column_ = newline ? 1 : column_ + 1;
  }
}

void Lexer::skip_blanks() {
  while (pos_ < source_.size()) {
    char c = at(0);
    if (c == ' ' || c == '\n' || c == '\t' || c == '\r') {
      advance(1);
    } else if (c == '/' && at(1) == '/') {
      while (pos_ < source_.size() && at(0) != '\n') advance(1);
    } else {
      return;
    }
  }
}

std::string_view Lexer::run(std::size_t from, bool (*belongs)(char)) const {
  std::size_t length = 0;
  while (pos_ + from + length < source_.size() && belongs(at(from + length))) ++length;
  return source_.substr(pos_ + from, length);
}

Token Lexer::token(TokenKind kind, std::size_t num_bytes, std::size_t skip_front,
                   std::size_t skip_back) {
  Token t{kind, source_.substr(pos_ + skip_front, num_bytes - skip_front - skip_back), line_,
          column_};
  advance(num_bytes);
  return t;
}

std::size_t Lexer::number_length() const {
  std::size_t length = run(0, is_digit).size();
  if (at(length) == '.' && is_digit(at(length + 1))) length += 1 + run(length + 1, is_digit).size();
  if (at(length) == 'e') {
    std::size_t sign = at(length + 1) == '+' || at(length + 1) == '-' ? 1 : 0;
    std::size_t digits = run(length + 1 + sign, is_digit).size();
    if (digits > 0) length += 1 + sign + digits;
  }
  return length;
}

Token Lexer::string_token() {
  std::size_t length = 1;
  while (at(length) != '"') {
    std::size_t step = at(length) == '\\' ? 2 : 1;
    if (pos_ + length + step >= source_.size() || at(length) == '\n') {
      fail(token(TokenKind::kPunct, 1, 0, 0), "expected a closing quote on this line");
    }
    length += step;
  }
  return token(TokenKind::kString, length + 1, 1, 1);
}

Token Lexer::next() {
  skip_blanks();
  if (pos_ == source_.size()) return {TokenKind::kEnd, {}, line_, column_};
  char c = at(0);
  if (starts_identifier(c)) {
    return token(TokenKind::kWord, run(0, continues_identifier).size(), 0, 0);
  }
  if (is_digit(c)) return token(TokenKind::kNumber, number_length(), 0, 0);
  if (c == '"') return string_token();
  if ((c == '%' || c == '@') && starts_identifier(at(1))) {
    TokenKind kind = c == '%' ? TokenKind::kVar : TokenKind::kTensor;
    return token(kind, 1 + run(1, continues_identifier).size(), 1, 0);
  }
  if (c == '$' && is_digit(at(1))) {
    return token(TokenKind::kRegister, 1 + run(1, is_digit).size(), 1, 0);
  }
  for (std::string_view mark : kLongMarks) {
    if (source_.substr(pos_, 2) == mark) return token(TokenKind::kPunct, 2, 0, 0);
  }
  if (kMarks.find(c) != std::string_view::npos) return token(TokenKind::kPunct, 1, 0, 0);
  fail({TokenKind::kPunct, {}, line_, column_},
       fmt::format("nothing starts with '{}'", printable(source_.substr(pos_, 1))));
}

bool unescape(std::string_view text, std::string& out) {
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '\\') {
      out += text[i];
      continue;
    }
    char kind = i + 1 < text.size() ? text[i + 1] : '\0';
    if (kind == '"' || kind == '\\') {
      out += kind;
      i += 1;
      continue;
    }
    unsigned value = 0;
    if (kind != 'x' || i + 3 >= text.size()) return false;
    auto [end, error] = std::from_chars(&text[i + 2], &text[i + 2] + 2, value, 16);
    if (error != std::errc{} || end != &text[i + 2] + 2) return false;
    out += static_cast<char>(value);
    i += 3;
  }
  return true;
}

}  // namespace stretto
