// Words, names, numbers, strings and punctuation of the text form (printer.h shows it), with their
// places. Comments run from // to the end of the line.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace stretto {

enum class TokenKind : std::uint8_t {
  kEnd,
  kWord,      // role, load, my_signal
  kVar,       // %m; text without the sigil
  kTensor,    // @a
  kRegister,  // $12; text is the number
  kNumber,    // 12, 1.5, 1e-30; a sign is punctuation
  kString,    // text between the quotes, escapes not yet resolved
  kPunct,
};

struct Token {
  TokenKind kind = TokenKind::kEnd;
  std::string_view text;  // into the source
  int line = 1, column = 1;
};

class Lexer {
 public:
  // Both must outlive the lexer; `where` names the source in errors.
  Lexer(std::string_view source, const std::string& where) : source_(source), where_(where) {}

  // kEnd at the end, again and again. UserError for bytes that start no token.
  Token next();

  // Throws UserError "where:line:column: <what>".
  [[noreturn]] void fail(const Token& at, const std::string& what) const;

 private:
  void skip_blanks();
  void advance(std::size_t num_bytes);
  std::string_view run(std::size_t from, bool (*belongs)(char)) const;
  Token token(TokenKind kind, std::size_t num_bytes, std::size_t skip_front, std::size_t skip_back);
  std::size_t number_length() const;
  Token string_token();
  char at(std::size_t offset) const {
    return offset < source_.size() - pos_ ? source_[pos_ + offset] : '\0';
  }

  std::string_view source_;
  const std::string& where_;
  std::size_t pos_ = 0;
  int line_ = 1, column_ = 1;
};

// Resolves \" \\ and \xNN; returns false where another escape stands.
bool unescape(std::string_view text, std::string& out);

}  // namespace stretto
