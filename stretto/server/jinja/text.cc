#include "stretto/server/jinja/text.h"

#include <fmt/format.h>
#include <utf8proc.h>

#include <algorithm>
#include <span>

namespace stretto::jinja {
namespace {

void append_utf8(std::string& out, char32_t c) {
  if (c < 0x80) {
    out += static_cast<char>(c);
  } else if (c < 0x800) {
    out += static_cast<char>(0xC0 | (c >> 6));
    out += static_cast<char>(0x80 | (c & 0x3F));
  } else if (c < 0x10000) {
    out += static_cast<char>(0xE0 | (c >> 12));
    out += static_cast<char>(0x80 | ((c >> 6) & 0x3F));
    out += static_cast<char>(0x80 | (c & 0x3F));
  } else {
    out += static_cast<char>(0xF0 | (c >> 18));
    out += static_cast<char>(0x80 | ((c >> 12) & 0x3F));
    out += static_cast<char>(0x80 | ((c >> 6) & 0x3F));
    out += static_cast<char>(0x80 | (c & 0x3F));
  }
}

utf8proc_category_t category(char32_t c) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(c));
}

bool is_printable(char32_t c) {
  switch (category(c)) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
      return false;
    case UTF8PROC_CATEGORY_ZS:
      return c == ' ';
    default:
      return true;
  }
}

void append_ascii(Text& out, std::string_view ascii, char32_t mark) {
  for (char c : ascii) out += static_cast<char32_t>(static_cast<unsigned char>(c)) | mark;
}

char32_t upper_of(char32_t c) {
  return static_cast<char32_t>(utf8proc_toupper(static_cast<utf8proc_int32_t>(c)));
}
char32_t lower_of(char32_t c) {
  return static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c)));
}

// Where `what` is first, in time of both their sizes (Knuth, Morris, Pratt, "Fast pattern matching
// in strings", 1977): texts of users are looked for in each other.
template <typename At>
std::size_t find_between(At begin, At end, At what, At what_end) {
  const auto size = static_cast<std::size_t>(what_end - what);
  if (size == 0) return 0;
  if (static_cast<std::size_t>(end - begin) < size) return TextView::npos;
  auto same = [](char32_t a, char32_t b) { return plain(a) == plain(b); };
  auto wanted = [&](std::size_t i) { return what[static_cast<std::ptrdiff_t>(i)]; };
  constexpr std::size_t kFew = 8;  // comparisons at each place do no harm
  if (size <= kFew) {
    const At at = std::search(begin, end, what, what_end, same);
    return at == end ? TextView::npos : static_cast<std::size_t>(at - begin);
  }
  // Of the first i + 1 characters of `what`, how many at their end are those of its beginning.
  std::vector<std::size_t> borders(size, 0);
  for (std::size_t i = 1, length = 0; i < size; ++i) {
    while (length > 0 && !same(wanted(i), wanted(length))) length = borders[length - 1];
    if (same(wanted(i), wanted(length))) ++length;
    borders[i] = length;
  }
  std::size_t length = 0;
  for (At at = begin; at != end; ++at) {
    while (length > 0 && !same(*at, wanted(length))) length = borders[length - 1];
    if (same(*at, wanted(length))) ++length;
    if (length == size) return static_cast<std::size_t>(at - begin) + 1 - size;
  }
  return TextView::npos;
}

}  // namespace

Text to_text(std::string_view utf8, Origin origin) {
  const char32_t mark = origin == Origin::kUser ? kUserBit : 0;
  Text out;
  out.reserve(utf8.size());
  const auto* at = reinterpret_cast<const utf8proc_uint8_t*>(utf8.data());
  const utf8proc_uint8_t* const end = at + utf8.size();
  while (at < end) {
    if (*at < 0x80) {
      out += static_cast<char32_t>(*at++) | mark;
      continue;
    }
    utf8proc_int32_t c = -1;
    utf8proc_ssize_t size = utf8proc_iterate(at, end - at, &c);
    if (size <= 0) {
      c = 0xFFFD;
      size = 1;
    }
    out += static_cast<char32_t>(c) | mark;
    at += size;
  }
  return out;
}

std::string to_utf8(TextView text) {
  std::string out;
  out.reserve(text.size());
  for (char32_t c : text) append_utf8(out, plain(c));
  return out;
}

std::vector<Piece> to_pieces(TextView text) {
  std::vector<Piece> out;
  for (char32_t c : text) {
    bool is_user = user_bit(c) != 0;
    if (out.empty() || out.back().is_user != is_user)
      out.push_back({.text = "", .is_user = is_user});
    append_utf8(out.back().text, plain(c));
  }
  return out;
}

int compare(TextView a, TextView b) {
  const std::size_t size = std::min(a.size(), b.size());
  for (std::size_t i = 0; i < size; ++i) {
    if (plain(a[i]) != plain(b[i])) return plain(a[i]) < plain(b[i]) ? -1 : 1;
  }
  return a.size() == b.size() ? 0 : a.size() < b.size() ? -1 : 1;
}

bool equal(TextView a, TextView b) { return a.size() == b.size() && compare(a, b) == 0; }

std::size_t find_in(TextView text, TextView what, std::size_t from) {
  if (from > text.size()) return TextView::npos;
  text.remove_prefix(from);
  const std::size_t at = find_between(text.begin(), text.end(), what.begin(), what.end());
  return at == TextView::npos ? at : from + at;
}

std::size_t rfind_in(TextView text, TextView what) {
  const std::size_t at = find_between(text.rbegin(), text.rend(), what.rbegin(), what.rend());
  return at == TextView::npos ? at : text.size() - what.size() - at;
}

bool starts_with(TextView text, TextView what) {
  return text.size() >= what.size() && equal(text.substr(0, what.size()), what);
}

bool ends_with(TextView text, TextView what) {
  return text.size() >= what.size() && equal(text.substr(text.size() - what.size()), what);
}

bool is_space(char32_t marked) {
  const char32_t c = plain(marked);
  return (c >= 9 && c <= 13) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

TextView strip(TextView text, const Text* chars, bool left, bool right) {
  Text sorted;
  if (chars != nullptr) {
    for (char32_t c : *chars) sorted += plain(c);
    std::sort(sorted.begin(), sorted.end());
  }
  auto goes = [&](char32_t c) {
    return chars == nullptr ? is_space(c)
                            : std::binary_search(sorted.begin(), sorted.end(), plain(c));
  };
  while (left && !text.empty() && goes(text.front())) text.remove_prefix(1);
  while (right && !text.empty() && goes(text.back())) text.remove_suffix(1);
  return text;
}

Text replace(TextView text, TextView from, TextView to, std::int64_t count) {
  Text out;
  std::size_t at = 0;
  for (; count != 0; --count) {
    if (from.empty()) {  // before every code point and at the end
      out += to;
      if (at == text.size()) return out;
      out += text[at++];
      continue;
    }
    std::size_t next = find_in(text, from, at);
    if (next == TextView::npos) break;
    out += text.substr(at, next - at);
    out += to;
    at = next + from.size();
  }
  out += text.substr(at);
  return out;
}

std::vector<Text> split_lines(TextView text, bool keeps_ends) {
  auto ends = [](char32_t marked) {
    const char32_t c = plain(marked);
    return (c >= 10 && c <= 13) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 ||
           c == 0x2029;
  };
  std::vector<Text> out;
  for (std::size_t at = 0; at < text.size();) {
    std::size_t end = at;
    while (end < text.size() && !ends(text[end])) ++end;
    std::size_t next = std::min(end + 1, text.size());
    if (next < text.size() && plain(text[end]) == U'\r' && plain(text[next]) == U'\n') ++next;
    out.emplace_back(text.substr(at, (keeps_ends ? next : end) - at));
    at = next;
  }
  return out;
}

Text lower(TextView text) {
  Text out;
  out.reserve(text.size());
  for (char32_t c : text) {
    out += lower_of(plain(c)) | user_bit(c);
    if (plain(c) == 0x130) out += 0x307 | user_bit(c);  // the one that becomes two
  }
  return out;
}

Text upper(TextView text) {
  Text out;
  out.reserve(text.size());
  for (char32_t c : text) {
    if (plain(c) == 0xDF) {
      append_ascii(out, "SS", user_bit(c));
    } else {
      out += upper_of(plain(c)) | user_bit(c);
    }
  }
  return out;
}

Text capitalize(TextView text) {
  if (text.empty()) return {};
  const char32_t first = plain(text[0]), mark = user_bit(text[0]);
  Text out;
  if (first == 0xDF) {
    append_ascii(out, "Ss", mark);
  } else {
    out += static_cast<char32_t>(utf8proc_totitle(static_cast<utf8proc_int32_t>(first))) | mark;
  }
  return out + lower(text.substr(1));
}

bool is_alpha(char32_t c) {
  switch (category(plain(c))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
      return true;
    default:
      return false;
  }
}

namespace {

struct CodePoints {
  char32_t first, last;
};
bool is_among(std::span<const CodePoints> ranges, char32_t c) {
  return std::ranges::any_of(ranges,
                             [&](const CodePoints& r) { return r.first <= c && c <= r.last; });
}
// Other_Uppercase and Other_Lowercase of Unicode 14: cased, and no letters of that category.
constexpr CodePoints kOtherUpper[] = {
    {0x2160, 0x216f}, {0x24b6, 0x24cf}, {0x1f130, 0x1f149}, {0x1f150, 0x1f169}, {0x1f170, 0x1f189}};
constexpr CodePoints kOtherLower[] = {
    {0xaa, 0xaa},       {0xba, 0xba},       {0x2b0, 0x2b8},     {0x2c0, 0x2c1},    {0x2e0, 0x2e4},
    {0x345, 0x345},     {0x37a, 0x37a},     {0x1d2c, 0x1d6a},   {0x1d78, 0x1d78},  {0x1d9b, 0x1dbf},
    {0x2071, 0x2071},   {0x207f, 0x207f},   {0x2090, 0x209c},   {0x2170, 0x217f},  {0x24d0, 0x24e9},
    {0x2c7c, 0x2c7d},   {0xa69c, 0xa69d},   {0xa770, 0xa770},   {0xa7f8, 0xa7f9},  {0xab5c, 0xab5f},
    {0x10780, 0x10780}, {0x10783, 0x10785}, {0x10787, 0x107b0}, {0x107b2, 0x107ba}};

}  // namespace

bool is_cased_upper(char32_t c) {
  return category(plain(c)) == UTF8PROC_CATEGORY_LU || is_among(kOtherUpper, plain(c));
}
bool is_cased_lower(char32_t c) {
  return category(plain(c)) == UTF8PROC_CATEGORY_LL || is_among(kOtherLower, plain(c));
}
bool is_cased_title(char32_t c) { return category(plain(c)) == UTF8PROC_CATEGORY_LT; }

Text html_escaped(TextView text) {
  Text out;
  for (char32_t c : text) {
    const TextView with = plain(c) == U'&'    ? U"&amp;"
                          : plain(c) == U'<'  ? U"&lt;"
                          : plain(c) == U'>'  ? U"&gt;"
                          : plain(c) == U'"'  ? U"&#34;"
                          : plain(c) == U'\'' ? U"&#39;"
                                              : U"";
    if (with.empty()) out += c;
    for (char32_t one : with) out += one | user_bit(c);
  }
  return out;
}

Text repr(TextView text) {
  auto has = [&](char32_t wanted) {
    return std::any_of(text.begin(), text.end(), [&](char32_t c) { return plain(c) == wanted; });
  };
  const char32_t quote = has(U'\'') && !has(U'"') ? U'"' : U'\'';
  Text out(1, quote);
  for (char32_t marked : text) {
    const char32_t c = plain(marked), mark = user_bit(marked);
    if (c == quote || c == U'\\') {
      out += U'\\' | mark;
      out += marked;
    } else if (c == U'\n' || c == U'\r' || c == U'\t') {
      append_ascii(out, c == U'\n' ? "\\n" : c == U'\r' ? "\\r" : "\\t", mark);
    } else if (is_printable(c)) {
      out += marked;
    } else if (c < 0x100) {
      append_ascii(out, fmt::format("\\x{:02x}", static_cast<std::uint32_t>(c)), mark);
    } else if (c < 0x10000) {
      append_ascii(out, fmt::format("\\u{:04x}", static_cast<std::uint32_t>(c)), mark);
    } else {
      append_ascii(out, fmt::format("\\U{:08x}", static_cast<std::uint32_t>(c)), mark);
    }
  }
  out += quote;
  return out;
}

void append_json(Text& out, TextView text, bool ensure_ascii) {
  out += U'"';
  for (char32_t marked : text) {
    const char32_t c = plain(marked), mark = user_bit(marked);
    auto escape = [&](std::uint32_t unit) {
      append_ascii(out, fmt::format("\\u{:04x}", unit), mark);
    };
    switch (c) {
      case U'"':
        append_ascii(out, "\\\"", mark);
        break;
      case U'\\':
        append_ascii(out, "\\\\", mark);
        break;
      case U'\n':
        append_ascii(out, "\\n", mark);
        break;
      case U'\r':
        append_ascii(out, "\\r", mark);
        break;
      case U'\t':
        append_ascii(out, "\\t", mark);
        break;
      case U'\b':
        append_ascii(out, "\\b", mark);
        break;
      case U'\f':
        append_ascii(out, "\\f", mark);
        break;
      default:
        if (c < 0x20 || (ensure_ascii && c > 0x7E && c < 0x10000)) {
          escape(static_cast<std::uint32_t>(c));
        } else if (ensure_ascii && c >= 0x10000) {
          escape(0xD800 + ((static_cast<std::uint32_t>(c) - 0x10000) >> 10));
          escape(0xDC00 + ((static_cast<std::uint32_t>(c) - 0x10000) & 0x3FF));
        } else {
          out += marked;
        }
    }
  }
  out += U'"';
}

}  // namespace stretto::jinja
