#include "stretto/server/jinja/lexer.h"

#include <algorithm>
#include <array>
#include <optional>

#include "stretto/server/jinja/error.h"

namespace stretto::jinja {
namespace {

bool is_digit(char32_t c) { return c >= U'0' && c <= U'9'; }
bool is_name_begin(char32_t c) {
  return (c >= U'a' && c <= U'z') || (c >= U'A' && c <= U'Z') || c == U'_' ||
         (c > 0x7F && is_alpha(c));
}

int digit_of(char32_t c) {
  if (is_digit(c)) return static_cast<int>(c - U'0');
  if (c >= U'a' && c <= U'f') return static_cast<int>(c - U'a') + 10;
  if (c >= U'A' && c <= U'F') return static_cast<int>(c - U'A') + 10;
  return 99;
}

// Line ends become \n; one at the very end goes.
Text normalized(const Text& source) {
  Text out;
  out.reserve(source.size());
  for (std::size_t i = 0; i < source.size(); ++i) {
    if (source[i] != U'\r') {
      out += source[i];
      continue;
    }
    out += U'\n';
    if (i + 1 < source.size() && source[i + 1] == U'\n') ++i;
  }
  if (out.ends_with(U'\n')) out.pop_back();
  return out;
}

// What Python's "unicode-escape" makes of a string literal.
Text unescaped(TextView text) {
  Text out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != U'\\' || i + 1 == text.size()) {
      out += text[i];
      continue;
    }
    const char32_t c = text[++i];
    auto hexadecimal = [&](std::size_t count) {
      std::uint32_t value = 0;
      for (std::size_t k = 0; k < count; ++k) {
        if (i + 1 >= text.size() || digit_of(text[i + 1]) > 15) {
          fail("a string's \\{} needs {} hexadecimal digits", static_cast<char>(c), count);
        }
        value = value * 16 + static_cast<std::uint32_t>(digit_of(text[++i]));
      }
      if (value > 0x10FFFF || (value >= 0xD800 && value < 0xE000)) {
        fail("a string's escape is no character");
      }
      out += static_cast<char32_t>(value);
    };
    static constexpr TextView kFrom = U"ntrabfv\\'\"", kTo = U"\n\t\r\a\b\f\v\\'\"";
    if (std::size_t at = kFrom.find(c); at != TextView::npos) {
      out += kTo[at];
    } else if (c >= U'0' && c <= U'7') {
      std::uint32_t value = static_cast<std::uint32_t>(c - U'0');
      for (int k = 0; k < 2 && i + 1 < text.size() && digit_of(text[i + 1]) < 8; ++k) {
        value = value * 8 + static_cast<std::uint32_t>(digit_of(text[++i]));
      }
      out += static_cast<char32_t>(value);
    } else if (c == U'x') {
      hexadecimal(2);
    } else if (c == U'u') {
      hexadecimal(4);
    } else if (c == U'U') {
      hexadecimal(8);
    } else if (c == U'N') {
      fail("\\N{{...}} in a string is not supported");
    } else if (c != U'\n') {  // a line end after a backslash is nothing
      out += U'\\';
      out += c;
    }
  }
  return out;
}

class Lexer {
 public:
  explicit Lexer(const Text& source) : source_(normalized(source)) {}

  std::vector<Token> lex() {
    try {
      while (at_ < source_.size()) data();
    } catch (const TemplateError& e) {
      if (e.line() != 0) throw;
      throw TemplateError(e.what(), line_);
    }
    tokens_.push_back({.kind = Token::Kind::kEnd, .line = line_});
    return std::move(tokens_);
  }

 private:
  bool sees(TextView what, std::size_t at) const {
    return TextView(source_).substr(std::min(at, source_.size())).starts_with(what);
  }
  void count_lines(std::size_t begin, std::size_t end) {
    line_ +=
        static_cast<int>(std::count(source_.begin() + static_cast<std::ptrdiff_t>(begin),
                                    source_.begin() + static_cast<std::ptrdiff_t>(end), U'\n'));
  }
  std::size_t after_space(std::size_t at) const {
    while (at < source_.size() && is_space(source_[at])) ++at;
    return at;
  }
  // Moves on; what follows begins a line if a line end is the last thing left behind.
  void advance(std::size_t to) {
    count_lines(at_, to);
    line_starting_ = to > at_ ? source_[to - 1] == U'\n' : line_starting_;
    at_ = to;
  }
  void add_data(TextView text) {
    if (!text.empty()) {
      tokens_.push_back({.kind = Token::Kind::kData, .line = line_, .text = Text(text)});
    }
  }
  // The data before a tag, by the tag's sign.
  TextView stripped(TextView text, char32_t sign, bool is_variable) const {
    if (sign == U'-') return strip(text, nullptr, false, true);
    if (sign == U'+' || is_variable) return text;
    std::size_t line = text.rfind(U'\n') + 1;  // 0 where there is none
    if (line == 0 && !line_starting_) return text;
    bool is_blank = line < text.size() && after_space_in(text, line) == text.size();
    return is_blank ? text.substr(0, line) : text;
  }
  static std::size_t after_space_in(TextView text, std::size_t at) {
    while (at < text.size() && is_space(text[at])) ++at;
    return at;
  }
  char32_t sign_at(std::size_t at) const {
    return at < source_.size() && (source_[at] == U'-' || source_[at] == U'+') ? source_[at] : 0;
  }

  // Up to the next tag, and the tag.
  void data() {
    std::size_t tag = at_;
    for (;; ++tag) {
      tag = source_.find(U'{', tag);
      if (tag == Text::npos || tag + 1 == source_.size()) {
        add_data(TextView(source_).substr(at_));
        return advance(source_.size());
      }
      const char32_t next = source_[tag + 1];
      if (next == U'{' || next == U'%' || next == U'#') break;
    }
    const char32_t sort = source_[tag + 1];
    const char32_t sign = sign_at(tag + 2);
    add_data(stripped(TextView(source_).substr(at_, tag - at_), sign, sort == U'{'));
    advance(tag);
    const std::size_t inside = tag + (sign != 0 ? 3 : 2);
    if (sort == U'#') return comment(inside);
    if (sort == U'%') {
      if (std::optional<std::size_t> raw = raw_begin(inside)) return raw_block(*raw);
    }
    tokens_.push_back(
        {.kind = sort == U'{' ? Token::Kind::kVariableBegin : Token::Kind::kBlockBegin,
         .line = line_});
    advance(inside);
    inside_tag(sort == U'{' ? U"}}" : U"%}", sort == U'%');
  }

  // Where a tag ends that closes with `close` at `at`, by its sign; nothing where it does not.
  std::optional<std::size_t> end_of_tag(std::size_t at, TextView close, bool trims,
                                        bool takes_plus) const {
    if (at < source_.size() && source_[at] == U'-' && sees(close, at + 1)) {
      return after_space(at + 1 + close.size());
    }
    if (takes_plus && at < source_.size() && source_[at] == U'+' && sees(close, at + 1)) {
      return at + 1 + close.size();
    }
    if (!sees(close, at)) return std::nullopt;
    at += close.size();
    return trims && at < source_.size() && source_[at] == U'\n' ? at + 1 : at;
  }

  void comment(std::size_t at) {
    for (; at < source_.size(); ++at) {
      if (auto end = end_of_tag(at, U"#}", true, true)) return advance(*end);
    }
    fail("a comment is not closed");
  }

  // {% raw %}
  std::optional<std::size_t> raw_begin(std::size_t at) const {
    at = after_space(at);
    if (!sees(U"raw", at)) return std::nullopt;
    return end_of_tag(after_space(at + 3), U"%}", false, false);
  }
  void raw_block(std::size_t begin) {
    advance(begin);
    for (std::size_t tag = source_.find(U"{%", at_); tag != Text::npos;
         tag = source_.find(U"{%", tag + 1)) {
      const char32_t sign = sign_at(tag + 2);
      std::size_t word = after_space(tag + (sign != 0 ? 3 : 2));
      if (!sees(U"endraw", word)) continue;
      auto end = end_of_tag(after_space(word + 6), U"%}", true, true);
      if (!end) continue;
      add_data(stripped(TextView(source_).substr(at_, tag - at_), sign, false));
      return advance(*end);
    }
    fail("a raw block is not closed");
  }

  void inside_tag(TextView close, bool is_block) {
    std::string open;  // brackets
    for (;;) {
      advance(after_space(at_));
      if (at_ == source_.size()) fail("a tag is not closed");
      if (open.empty()) {
        if (auto end = end_of_tag(at_, close, is_block, is_block)) {
          tokens_.push_back({.kind = is_block ? Token::Kind::kBlockEnd : Token::Kind::kVariableEnd,
                             .line = line_});
          return advance(*end);
        }
      }
      const char32_t c = source_[at_];
      if (is_digit(c)) {
        number();
      } else if (is_name_begin(c)) {
        std::size_t end = at_;
        while (end < source_.size() && (is_name_begin(source_[end]) || is_digit(source_[end]))) {
          ++end;
        }
        add(Token::Kind::kName, end);
      } else if (c == U'\'' || c == U'"') {
        string(c);
      } else {
        operators(open);
      }
    }
  }

  void add(Token::Kind kind, std::size_t end) {
    tokens_.push_back(
        {.kind = kind, .line = line_, .word = to_utf8(TextView(source_).substr(at_, end - at_))});
    advance(end);
  }

  void string(char32_t quote) {
    std::size_t end = at_ + 1;
    while (end < source_.size() && source_[end] != quote) end += source_[end] == U'\\' ? 2 : 1;
    if (end >= source_.size()) fail("a string is not closed");
    tokens_.push_back({.kind = Token::Kind::kString,
                       .line = line_,
                       .text = unescaped(TextView(source_).substr(at_ + 1, end - at_ - 1))});
    advance(end + 1);
  }

  // Digits with single underscores between them; `at` where there are none.
  std::size_t after_digits(std::size_t at) const {
    std::size_t end = at;
    while (end < source_.size() &&
           (is_digit(source_[end]) || (source_[end] == U'_' && end > at &&
                                       end + 1 < source_.size() && is_digit(source_[end + 1])))) {
      ++end;
    }
    return end;
  }

  void number() {
    if (source_[at_] == U'0' && at_ + 1 < source_.size() &&
        TextView(U"bBoOxX").find(source_[at_ + 1]) != TextView::npos) {
      const char32_t sort = source_[at_ + 1] | 0x20;
      const int base = sort == U'b' ? 2 : sort == U'o' ? 8 : 16;
      std::size_t end = at_ + 2;
      while (end < source_.size() && (source_[end] == U'_' || digit_of(source_[end]) < base)) ++end;
      if (end > at_ + 2) return add(Token::Kind::kInteger, end);
    }
    std::size_t end = after_digits(at_);
    bool is_float = false;
    const bool after_dot =
        !tokens_.empty() && tokens_.back().word == "." && at_ > 0 && source_[at_ - 1] == U'.';
    if (!after_dot && end + 1 < source_.size() && source_[end] == U'.' &&
        is_digit(source_[end + 1])) {
      end = after_digits(end + 1);
      is_float = true;
    }
    if (!after_dot && end < source_.size() && (source_[end] | 0x20) == U'e') {
      std::size_t digits = end + 1;
      if (digits < source_.size() && (source_[digits] == U'+' || source_[digits] == U'-')) ++digits;
      if (std::size_t after = after_digits(digits); after > digits) {
        end = after;
        is_float = true;
      }
    }
    if (!is_float && source_[at_] == U'0') {  // jinja2 ends an integer after leading zeros
      end = at_;
      while (end < source_.size() && (source_[end] == U'0' || source_[end] == U'_')) ++end;
    }
    add(is_float ? Token::Kind::kFloat : Token::Kind::kInteger, end);
  }

  void operators(std::string& open) {
    static constexpr std::array<TextView, 6> kTwo = {U"==", U"!=", U">=", U"<=", U"//", U"**"};
    for (TextView two : kTwo) {
      if (sees(two, at_)) return add(Token::Kind::kOperator, at_ + 2);
    }
    const char32_t c = source_[at_];
    if (TextView(U"+-/*%~[](){}<>=.:|,;").find(c) == TextView::npos) {
      fail("unexpected character '{}'", to_utf8(TextView(source_).substr(at_, 1)));
    }
    if (c == U'(' || c == U'[' || c == U'{') open += static_cast<char>(c);
    if (c == U')' || c == U']' || c == U'}') {
      const char wanted = c == U')' ? '(' : c == U']' ? '[' : '{';
      if (open.empty() || open.back() != wanted) fail("unexpected '{}'", static_cast<char>(c));
      open.pop_back();
    }
    add(Token::Kind::kOperator, at_ + 1);
  }

  Text source_;
  std::size_t at_ = 0;
  int line_ = 1;
  bool line_starting_ = true;
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> lex(Text source) { return Lexer(source).lex(); }

}  // namespace stretto::jinja
