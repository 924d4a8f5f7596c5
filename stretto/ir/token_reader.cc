#include "stretto/ir/token_reader.h"

#include <fmt/format.h>

#include <charconv>

#include "stretto/base/printable.h"

namespace stretto {
namespace {

std::string describe(const Token& t) {
  switch (t.kind) {
    case TokenKind::kEnd:
      return "the end of the text";
    case TokenKind::kVar:
      return fmt::format("'%{}'", printable(t.text, 40));
    case TokenKind::kTensor:
      return fmt::format("'@{}'", printable(t.text, 40));
    case TokenKind::kRegister:
      return fmt::format("'${}'", printable(t.text, 40));
    case TokenKind::kString:
      return fmt::format("\"{}\"", printable(t.text, 40));
    default:
      return fmt::format("'{}'", printable(t.text, 40));
  }
}

}  // namespace

Token TokenReader::take() {
  Token taken = next_;
  next_ = lexer_.next();
  return taken;
}

bool TokenReader::at_mark(std::string_view mark) const {
  return next_.kind == TokenKind::kPunct && next_.text == mark;
}
bool TokenReader::at_word(std::string_view word) const {
  return next_.kind == TokenKind::kWord && next_.text == word;
}
bool TokenReader::accept_mark(std::string_view mark) {
  if (!at_mark(mark)) return false;
  take();
  return true;
}
bool TokenReader::accept_word(std::string_view word) {
  if (!at_word(word)) return false;
  take();
  return true;
}
void TokenReader::expect_mark(std::string_view mark) {
  if (!accept_mark(mark)) expected(fmt::format("'{}'", mark));
}
void TokenReader::expect_word(std::string_view word) {
  if (!accept_word(word)) expected(fmt::format("'{}'", word));
}
Token TokenReader::expect(TokenKind kind, const char* what) {
  if (next_.kind != kind) expected(what);
  return take();
}

void TokenReader::expected(const std::string& what) const {
  fail(next_, fmt::format("expected {}, got {}", what, describe(next_)));
}

std::int64_t TokenReader::integer(std::int64_t lo, std::int64_t hi, const char* what) {
  Token start = next_;
  std::string digits = accept_mark("-") ? "-" : "";
  digits += expect(TokenKind::kNumber, what).text;
  std::int64_t value = 0;
  auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  bool whole = error == std::errc{} && end == digits.data() + digits.size();
  if (!whole || value < lo || value > hi) {
    fail(start,
         fmt::format("expected {} from {} to {}, got '{}'", what, lo, hi, printable(digits, 40)));
  }
  return value;
}

double TokenReader::real() {
  Token start = next_;
  std::string text = accept_mark("-") ? "-" : "";
  if (at_word("inf") || at_word("nan") || next_.kind == TokenKind::kNumber) {
    text += take().text;
  } else {
    expected("a number");
  }
  double value = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) {
    fail(start,
         fmt::format("expected a number that a double can hold, got '{}'", printable(text, 40)));
  }
  return value;
}

std::string TokenReader::string(const char* what) {
  Token quoted = expect(TokenKind::kString, what);
  std::string out;
  if (!unescape(quoted.text, out)) {
    fail(quoted, "expected only the escapes \\\" \\\\ \\xNN in a string");
  }
  return out;
}

}  // namespace stretto
