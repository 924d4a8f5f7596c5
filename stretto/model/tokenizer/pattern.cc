#include "stretto/model/tokenizer/pattern.h"

namespace stretto::tokenization {

Regex parse_pattern(const JsonNode& field) {
  const auto literal = field.find("String");
  const auto regex = field.find("Regex");
  if (literal.has_value() == regex.has_value()) field.fail("need either a String or a Regex");
  return literal ? Regex::literal(literal->text(), literal->path())
                 : Regex(regex->text(), regex->path());
}

Replace::Replace(const JsonNode& field)
    : pattern_(parse_pattern(field.at("pattern"))), content_(field.at("content").text()) {}

std::string Replace::apply(std::string_view text) const {
  if (text.empty()) return {};
  std::string out;
  std::size_t done = 0;
  for (const Span& match : pattern_.find_all(text)) {
    out += text.substr(done, match.begin - done);
    out += content_;
    done = match.end;
  }
  out += text.substr(done);
  return out;
}

bool Replace::keeps_begin(std::string_view text, bool before) const {
  const std::vector<Span> found = pattern_.find_all(text);
  if (found.empty() || found.front().begin != 0) return before;
  if (!content_.empty()) return true;  // what is put in counts as the beginning
  return found.front().end == 0 && before;
}

}  // namespace stretto::tokenization
