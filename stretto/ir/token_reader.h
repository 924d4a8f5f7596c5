// One token of look-ahead over the lexer, and the small readings that every construct of the text
// form is made of. All failures are UserErrors that name the place.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>

#include "stretto/ir/lexer.h"

namespace stretto {

class TokenReader {
 public:
  TokenReader(std::string_view source, const std::string& where)
      : lexer_(source, where), next_(lexer_.next()) {}

  const Token& peek() const { return next_; }
  Token take();

  bool at_mark(std::string_view mark) const;
  bool at_word(std::string_view word) const;
  bool accept_mark(std::string_view mark);
  bool accept_word(std::string_view word);
  void expect_mark(std::string_view mark);
  void expect_word(std::string_view word);
  // `what` completes "expected ...".
  Token expect(TokenKind kind, const char* what);

  // A whole number, perhaps with a sign, within [lo, hi].
  std::int64_t integer(std::int64_t lo, std::int64_t hi, const char* what);
  template <typename Int>
  Int any_integer(const char* what) {
    return static_cast<Int>(
        integer(std::numeric_limits<Int>::min(), std::numeric_limits<Int>::max(), what));
  }
  double real();
  std::string string(const char* what);

  // A word that is name(Enum) of one of the `count` first enumerators.
  template <typename Enum, typename NameOf>
  Enum one_of(int count, const char* what, NameOf name_of) {
    for (int i = 0; i < count; ++i) {
      if (accept_word(name_of(static_cast<Enum>(i)))) return static_cast<Enum>(i);
    }
    expected(what);
  }

  [[noreturn]] void expected(const std::string& what) const;  // at the next token
  [[noreturn]] void fail(const Token& at, const std::string& what) const { lexer_.fail(at, what); }

 private:
  Lexer lexer_;
  Token next_;
};

}  // namespace stretto
