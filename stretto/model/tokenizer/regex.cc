#include "stretto/model/tokenizer/regex.h"

#include <fmt/format.h>
#include <oniguruma.h>

#include <algorithm>
#include <array>
#include <map>

#include "stretto/base/errors.h"
#include "stretto/model/tokenizer/unicode_data.h"
#include "stretto/model/tokenizer/utf8.h"

namespace stretto::tokenization {
namespace {

constexpr std::size_t kMaxPatternBytes = 1 << 16;
constexpr unsigned long kMinRetries = 10'000'000;  // Oniguruma's default per match
constexpr unsigned int kMaxMatchStack = 64'000'000;

// Defined under the same names, these take precedence over the engine's built-in tables. Categories
// to which no code point was added since Unicode 14 (the engine of Debian 12) are left to the
// engine, which has room for 20.
constexpr auto kCategories =
    std::to_array<const char*>({"L",  "N",  "M",  "P",  "S",  "C",  "Lu", "Ll", "Lm", "Lo",
                                "Nd", "No", "Mn", "Mc", "Po", "So", "Sm", "Cf", "Pd", "Cn"});

// Oniguruma keeps pointers to the ranges: {count, first, last, first, last, ...}.
using RangeTable = std::vector<OnigCodePoint>;

void extend(RangeTable& table, OnigCodePoint code_point) {
  if (table.empty()) table.push_back(0);
  if (table[0] > 0 && table.back() + 1 == code_point) {
    table.back() = code_point;
    return;
  }
  ++table[0];
  table.insert(table.end(), {code_point, code_point});
}

std::map<std::string, RangeTable, std::less<>> category_tables() {
  std::map<std::string, RangeTable, std::less<>> tables;
  for (const char* name : kCategories) tables[name];
  for (OnigCodePoint c = 0; c < 0x110000; ++c) {
    const bool surrogate = c >= 0xD800 && c < 0xE000;
    const std::string_view category = surrogate ? "Cs" : general_category(c);
    for (const std::string_view name : {category, category.substr(0, 1)}) {
      const auto table = tables.find(name);
      if (table != tables.end()) extend(table->second, c);
    }
  }
  return tables;
}

// The engine's set-up is per process; doing it once, before the first expression, is what its
// manual asks for.
void initialize_engine() {
  static const auto tables = [] {
    OnigEncoding encodings[] = {ONIG_ENCODING_UTF8};
    STRETTO_CHECK(onig_initialize(encodings, 1) == ONIG_NORMAL, "Oniguruma does not start");
    return category_tables();
  }();
  static const bool defined = [] {
    for (const auto& [name, table] : tables) {
      const int code =
          onig_unicode_define_user_property(name.c_str(), const_cast<OnigCodePoint*>(table.data()));
      STRETTO_CHECK(code == ONIG_NORMAL, "Oniguruma refuses property " + name);
    }
    return true;
  }();
  static_cast<void>(defined);
}

std::string error_text(int code, OnigErrorInfo* info) {
  std::array<UChar, ONIG_MAX_ERROR_MESSAGE_LEN> buffer{};
  const int length = info ? onig_error_code_to_str(buffer.data(), code, info)
                          : onig_error_code_to_str(buffer.data(), code);
  const std::string text(reinterpret_cast<const char*>(buffer.data()),
                         static_cast<std::size_t>(length));
  return replace_invalid_utf8(text);
}

const UChar* bytes(std::string_view text) { return reinterpret_cast<const UChar*>(text.data()); }

// Scratch of one find_all() call.
class Search {
 public:
  Search(re_pattern_buffer* compiled, std::string_view text)
      : compiled_(compiled),
        text_(text),
        region_(onig_region_new(), [](OnigRegion* region) { onig_region_free(region, 1); }),
        limits_(onig_new_match_param(), onig_free_match_param) {
    onig_initialize_match_param(limits_.get());
    const unsigned long retries = std::max<unsigned long>(kMinRetries, 16 * text.size());
    onig_set_retry_limit_in_match_of_match_param(limits_.get(), retries);
    onig_set_retry_limit_in_search_of_match_param(limits_.get(), retries);
    onig_set_match_stack_limit_size_of_match_param(limits_.get(), kMaxMatchStack);
  }

  // Negative: no match, or an error code.
  int next(std::size_t from, Span& match) {
    const UChar* begin = bytes(text_);
    const UChar* end = begin + text_.size();
    onig_region_clear(region_.get());
    const int code = onig_search_with_param(compiled_, begin, end, begin + from, end, region_.get(),
                                            ONIG_OPTION_NONE, limits_.get());
    if (code < 0) return code;
    match = {static_cast<std::size_t>(region_->beg[0]), static_cast<std::size_t>(region_->end[0])};
    return code;
  }

 private:
  re_pattern_buffer* compiled_;
  std::string_view text_;
  std::unique_ptr<OnigRegion, void (*)(OnigRegion*)> region_;
  std::unique_ptr<OnigMatchParam, void (*)(OnigMatchParam*)> limits_;
};

}  // namespace

Regex::Regex(std::string_view pattern, std::string where) : where_(std::move(where)) {
  if (pattern.size() > kMaxPatternBytes) {
    throw UserError(fmt::format("{}: expression of {} bytes, at most {} allowed", where_,
                                pattern.size(), kMaxPatternBytes));
  }
  initialize_engine();
  OnigErrorInfo info{};
  re_pattern_buffer* compiled = nullptr;
  const int code = onig_new(&compiled, bytes(pattern), bytes(pattern) + pattern.size(),
                            ONIG_OPTION_NONE, ONIG_ENCODING_UTF8, ONIG_SYNTAX_ONIGURUMA, &info);
  if (code != ONIG_NORMAL) {
    throw UserError(
        fmt::format("{}: not a regular expression: {}", where_, error_text(code, &info)));
  }
  compiled_.reset(compiled, onig_free);
}

Regex Regex::literal(std::string_view text, std::string where) {
  constexpr std::string_view kSpecial = R"(\.+*?()|[]{}^$#&-~)";
  std::string pattern;
  for (const char c : text) {
    if (kSpecial.find(c) != std::string_view::npos) pattern += '\\';
    pattern += c;
  }
  return Regex(pattern, std::move(where));
}

std::vector<Span> Regex::find_all(std::string_view text) const {
  std::vector<Span> matches;
  Search search(compiled_.get(), text);
  std::size_t from = 0;
  std::size_t last_end = 0;
  bool skip_empty = false;
  while (from <= text.size()) {
    Span match;
    const int code = search.next(from, match);
    if (code == ONIG_MISMATCH) break;
    if (code < 0) {
      throw UserError(fmt::format("{}: matching failed: {}", where_, error_text(code, nullptr)));
    }
    if (match.begin < last_end || match.end < match.begin || match.end < from) {
      throw UserError(fmt::format("{}: the expression matches text twice", where_));
    }
    const bool empty = match.begin == match.end;
    from = match.end;
    if (empty) from += from < text.size() ? utf8_length(text[from]) : 1;
    if (!empty || !skip_empty) {
      matches.push_back(match);
      last_end = match.end;
    }
    skip_empty = !empty;
  }
  return matches;
}

}  // namespace stretto::tokenization
