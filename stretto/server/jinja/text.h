// Text of templates as Python has it: a row of code points. Each carries one bit more, which says
// that it came with the request and not from the template; slices, joins and all else keep it, so
// that at the end of rendering nobody's words can pass for a special token.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace stretto::jinja {

using Text = std::u32string;
using TextView = std::u32string_view;

inline constexpr char32_t kUserBit = 0x80000000;
// The code point itself.
inline char32_t plain(char32_t c) { return c & ~kUserBit; }
inline char32_t user_bit(char32_t c) { return c & kUserBit; }

enum class Origin : std::uint8_t { kTemplate, kUser };

// Bytes that are no UTF-8 become U+FFFD.
Text to_text(std::string_view utf8, Origin origin = Origin::kTemplate);
std::string to_utf8(TextView text);

// UTF-8, all of one origin.
struct Piece {
  std::string text;
  bool is_user = false;

  bool operator==(const Piece&) const = default;
};
std::vector<Piece> to_pieces(TextView text);

// As Python's str has them, origins aside.
bool equal(TextView a, TextView b);
int compare(TextView a, TextView b);  // <0, 0, >0
std::size_t find_in(TextView text, TextView what, std::size_t from = 0);
std::size_t rfind_in(TextView text, TextView what);
bool starts_with(TextView text, TextView what);
bool ends_with(TextView text, TextView what);
bool is_space(char32_t c);
// Without `chars` white space.
TextView strip(TextView text, const Text* chars, bool left, bool right);
// `count` replacements at most, -1: all.
Text replace(TextView text, TextView from, TextView to, std::int64_t count);

// At every line end that Python knows, which `keeps_ends` keeps.
std::vector<Text> split_lines(TextView text, bool keeps_ends = false);

Text lower(TextView text);
Text upper(TextView text);
Text capitalize(TextView text);
bool is_alpha(char32_t c);
// As Python's isupper, islower and istitle look at a character of its own: Unicode's properties
// Uppercase and Lowercase, and letters such as U+01C5 that are half of each.
bool is_cased_upper(char32_t c);
bool is_cased_lower(char32_t c);
bool is_cased_title(char32_t c);

// With & < > " ' as HTML writes them.
Text html_escaped(TextView text);
// repr(): quoted and escaped.
Text repr(TextView text);
// As json.dumps(ensure_ascii=False) writes it, or with \u escapes.
void append_json(Text& out, TextView text, bool ensure_ascii);

}  // namespace stretto::jinja
