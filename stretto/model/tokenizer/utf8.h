// UTF-8 scanning for the tokenizer: every text that enters is made valid here first, and streamed
// output is cut at code point boundaries here. Malformed input is split into maximal subparts
// (Unicode 15, section 3.9, table 3-7), as Python's bytes.decode(errors='replace') does.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace stretto::tokenization {

inline constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

struct Utf8Step {
  enum class Kind {
    kValid,      // a whole code point
    kInvalid,    // a maximal subpart that no further byte can repair
    kTruncated,  // the text ends inside a code point that is well formed so far
  };
  Kind kind;
  char32_t code_point;  // meaningful for kValid only
  std::size_t length;   // bytes covered, at least 1
};

// First step of a text that is not empty.
Utf8Step next_utf8(std::string_view text);

bool is_valid_utf8(std::string_view text);

// Each maximal invalid subpart, and a truncated end, becomes one U+FFFD.
std::string replace_invalid_utf8(std::string_view text);

void append_utf8(std::string& out, char32_t code_point);

// First and last code point of valid text that is not empty.
char32_t first_code_point(std::string_view text);
char32_t last_code_point(std::string_view text);

// Byte length of the code point that starts with `lead`, in valid text.
std::size_t utf8_length(char lead);

}  // namespace stretto::tokenization
