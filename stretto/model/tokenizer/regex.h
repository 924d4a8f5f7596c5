// Regular expressions of tokenizer files, run by Oniguruma: the library that their authors tested
// them with, so that case folding, \s, look-ahead and backtracking order are the same. General
// categories (\p{L}, \p{N}, ...) are those of unicode_data.h; scripts, \d and \w are the library's
// own.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

struct re_pattern_buffer;  // Oniguruma's compiled expression

namespace stretto::tokenization {

struct Span {
  std::size_t begin = 0;  // bytes
  std::size_t end = 0;
};

// Copies share the compiled expression; matching is thread-safe.
class Regex {
 public:
  // `where` names the file and field. UserError when the expression does not compile.
  Regex(std::string_view pattern, std::string where);
  static Regex literal(std::string_view text, std::string where);

  // Matches from left to right, without overlap, in valid UTF-8. After an empty match the search
  // goes on one code point further, and the first empty match after one that is not empty is left
  // out, as in the reference. UserError when matching takes more steps than any sane expression
  // needs.
  std::vector<Span> find_all(std::string_view text) const;

 private:
  std::shared_ptr<re_pattern_buffer> compiled_;
  std::string where_;
};

}  // namespace stretto::tokenization
