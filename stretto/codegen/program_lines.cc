#include "stretto/codegen/program_lines.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

namespace stretto {
namespace {

constexpr std::string_view kDirective = "#line ";

}  // namespace

std::string program_line_text(const SourceLoc& loc) {
  if (loc.line <= 0) return "";  // built by hand
  std::string file;
  for (char c : loc.file) {
    if (c == '"' || c == '\\') file += '\\';
    file += c == '\n' ? ' ' : c;
  }
  return fmt::format("{}{} \"{}\"\n", kDirective, loc.line, file);
}

std::string without_program_lines(const std::string& text) {
  std::string out;
  for (std::size_t at = 0; at < text.size();) {
    std::size_t end = std::min(text.find('\n', at), text.size() - 1) + 1;
    if (text.compare(at, kDirective.size(), kDirective) != 0) out.append(text, at, end - at);
    at = end;
  }
  return out;
}

}  // namespace stretto
