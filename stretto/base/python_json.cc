#include "stretto/base/python_json.h"

#include <algorithm>

namespace stretto {
namespace {

// With quotes around what only Python takes for a number.
std::string with_quoted_numbers(std::string_view text) {
  std::string out;
  bool in_string = false;
  for (std::size_t at = 0; at < text.size();) {
    std::size_t length = 1;
    if (in_string && text[at] == '\\') length = std::min<std::size_t>(2, text.size() - at);
    if (text[at] == '"') in_string = !in_string;
    bool quotes = false;
    for (std::string_view number : {"-Infinity", "Infinity", "NaN"}) {
      if (in_string || quotes || !text.substr(at).starts_with(number)) continue;
      quotes = true;
      length = number.size();
    }
    if (quotes) out += '"';
    out += text.substr(at, length);
    if (quotes) out += '"';
    at += length;
  }
  return out;
}

}  // namespace

Json parse_python_json(std::string_view text, const std::string& where, const JsonLimits& limits) {
  return parse_json(with_quoted_numbers(text), where, limits);
}

}  // namespace stretto
