#include "stretto/model/tokenizer/unicode_data.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <span>

#include "stretto/model/tokenizer/utf8.h"

namespace stretto::tokenization {
namespace {

struct CategoryRange {
  char32_t first;
  char32_t last;
  const char* category;
};

// Code points whose category Unicode 15.1 or 16.0 set or changed: utf8proc 2.8 of Debian 12 stands
// at 15.0.
constexpr auto kSinceUnicode15 = std::to_array<CategoryRange>({
    {0x00897, 0x00897, "Mn"}, {0x01B4E, 0x01B4F, "Po"}, {0x01B7F, 0x01B7F, "Po"},
    {0x01C89, 0x01C89, "Lu"}, {0x01C8A, 0x01C8A, "Ll"}, {0x02427, 0x02429, "So"},
    {0x02FFC, 0x02FFF, "So"}, {0x031E4, 0x031E5, "So"}, {0x031EF, 0x031EF, "So"},
    {0x0A7CB, 0x0A7CC, "Lu"}, {0x0A7CD, 0x0A7CD, "Ll"}, {0x0A7DA, 0x0A7DA, "Lu"},
    {0x0A7DB, 0x0A7DB, "Ll"}, {0x0A7DC, 0x0A7DC, "Lu"}, {0x105C0, 0x105F3, "Lo"},
    {0x10D40, 0x10D49, "Nd"}, {0x10D4A, 0x10D4D, "Lo"}, {0x10D4E, 0x10D4E, "Lm"},
    {0x10D4F, 0x10D4F, "Lo"}, {0x10D50, 0x10D65, "Lu"}, {0x10D69, 0x10D6D, "Mn"},
    {0x10D6E, 0x10D6E, "Pd"}, {0x10D6F, 0x10D6F, "Lm"}, {0x10D70, 0x10D85, "Ll"},
    {0x10D8E, 0x10D8F, "Sm"}, {0x10EC2, 0x10EC4, "Lo"}, {0x10EFC, 0x10EFC, "Mn"},
    {0x11380, 0x11389, "Lo"}, {0x1138B, 0x1138B, "Lo"}, {0x1138E, 0x1138E, "Lo"},
    {0x11390, 0x113B5, "Lo"}, {0x113B7, 0x113B7, "Lo"}, {0x113B8, 0x113BA, "Mc"},
    {0x113BB, 0x113C0, "Mn"}, {0x113C2, 0x113C2, "Mc"}, {0x113C5, 0x113C5, "Mc"},
    {0x113C7, 0x113CA, "Mc"}, {0x113CC, 0x113CD, "Mc"}, {0x113CE, 0x113CE, "Mn"},
    {0x113CF, 0x113CF, "Mc"}, {0x113D0, 0x113D0, "Mn"}, {0x113D1, 0x113D1, "Lo"},
    {0x113D2, 0x113D2, "Mn"}, {0x113D3, 0x113D3, "Lo"}, {0x113D4, 0x113D5, "Po"},
    {0x113D7, 0x113D8, "Po"}, {0x113E1, 0x113E2, "Mn"}, {0x116D0, 0x116E3, "Nd"},
    {0x1171E, 0x1171E, "Mc"}, {0x11BC0, 0x11BE0, "Lo"}, {0x11BE1, 0x11BE1, "Po"},
    {0x11BF0, 0x11BF9, "Nd"}, {0x11F5A, 0x11F5A, "Mn"}, {0x13460, 0x143FA, "Lo"},
    {0x16100, 0x1611D, "Lo"}, {0x1611E, 0x16129, "Mn"}, {0x1612A, 0x1612C, "Mc"},
    {0x1612D, 0x1612F, "Mn"}, {0x16130, 0x16139, "Nd"}, {0x16D40, 0x16D42, "Lm"},
    {0x16D43, 0x16D6A, "Lo"}, {0x16D6B, 0x16D6C, "Lm"}, {0x16D6D, 0x16D6F, "Po"},
    {0x16D70, 0x16D79, "Nd"}, {0x18CFF, 0x18CFF, "Lo"}, {0x1CC00, 0x1CCEF, "So"},
    {0x1CCF0, 0x1CCF9, "Nd"}, {0x1CD00, 0x1CEB3, "So"}, {0x1E5D0, 0x1E5ED, "Lo"},
    {0x1E5EE, 0x1E5EF, "Mn"}, {0x1E5F0, 0x1E5F0, "Lo"}, {0x1E5F1, 0x1E5FA, "Nd"},
    {0x1E5FF, 0x1E5FF, "Po"}, {0x1F8B2, 0x1F8BB, "So"}, {0x1F8C0, 0x1F8C1, "So"},
    {0x1FA89, 0x1FA89, "So"}, {0x1FA8F, 0x1FA8F, "So"}, {0x1FABE, 0x1FABE, "So"},
    {0x1FAC6, 0x1FAC6, "So"}, {0x1FADC, 0x1FADC, "So"}, {0x1FADF, 0x1FADF, "So"},
    {0x1FAE9, 0x1FAE9, "So"}, {0x1FBCB, 0x1FBEF, "So"}, {0x2EBF0, 0x2EE5D, "Lo"},
});

// Lower-case pairs newer than utf8proc's tables (Unicode 16 and 17); `delta` is added to every code
// point of the range.
struct LowerRange {
  char32_t first;
  char32_t last;
  int delta;
};
constexpr auto kNewLower = std::to_array<LowerRange>({
    {0x1C89, 0x1C89, 1},
    {0xA7CB, 0xA7CB, 0x264 - 0xA7CB},
    {0xA7CC, 0xA7CC, 1},
    {0xA7CE, 0xA7CE, 1},
    {0xA7D2, 0xA7D2, 1},
    {0xA7D4, 0xA7D4, 1},
    {0xA7DA, 0xA7DA, 1},
    {0xA7DC, 0xA7DC, 0x19B - 0xA7DC},
    {0x10D50, 0x10D65, 0x20},
    {0x16EA0, 0x16EB8, 0x1B},
});

// Marks and punctuation that the reference's tables lack: those of BERT's normaliser and of
// Punctuation stand at Unicode 8, those of StripAccents at Unicode 9. Between the ends of a range
// nothing of its kind is older.
struct CodePoints {
  char32_t first;
  char32_t last;
};
constexpr auto kAccentsSinceUnicode8 = std::to_array<CodePoints>(
    {{0x5C8, 0x5C9},     {0x7FD, 0x7FD},     {0x897, 0x8E1},     {0x9FE, 0x9FE},
     {0xAFA, 0xAFF},     {0xB53, 0xB55},     {0xC04, 0xC3C},     {0xD00, 0xD00},
     {0xD3B, 0xD3C},     {0xD81, 0xD81},     {0xEBA, 0xEBA},     {0xECE, 0xECE},
     {0x180F, 0x1886},   {0x1ABF, 0x1AF0},   {0x1DF6, 0x1DFB},   {0xA82C, 0xA82C},
     {0xA8C5, 0xA8C5},   {0xA8FF, 0xA8FF},   {0xA9BD, 0xA9BD},   {0x10D24, 0x10F85},
     {0x11070, 0x11074}, {0x110C2, 0x110C2}, {0x111C9, 0x111C9}, {0x111CF, 0x111CF},
     {0x1123E, 0x11241}, {0x1133B, 0x1133B}, {0x113BB, 0x1145E}, {0x1182F, 0x1612F},
     {0x16F4F, 0x16F4F}, {0x16FE4, 0x16FE4}, {0x1CF00, 0x1D128}, {0x1D25B, 0x1D25C},
     {0x1E000, 0x1E6F5}, {0x1E944, 0x1E94A}});
constexpr auto kMarksSinceUnicode9 = std::to_array<CodePoints>(
    {{0x5C8, 0x5C9},     {0x7FD, 0x7FD},     {0x897, 0x8D3},     {0x9FE, 0x9FE},
     {0xAFA, 0xAFF},     {0xB53, 0xB55},     {0xC04, 0xC3C},     {0xCF3, 0xD00},
     {0xD3B, 0xD3C},     {0xD81, 0xD81},     {0xEBA, 0xEBA},     {0xECE, 0xECE},
     {0x1715, 0x1715},   {0x180F, 0x180F},   {0x1ABF, 0x1AF0},   {0x1CF7, 0x1CF7},
     {0x1DF6, 0x1DFA},   {0xA82C, 0xA82C},   {0xA8FF, 0xA8FF},   {0x10D24, 0x10F85},
     {0x11070, 0x11074}, {0x110C2, 0x110C2}, {0x11145, 0x11146}, {0x111C9, 0x111C9},
     {0x111CE, 0x111CF}, {0x11241, 0x11241}, {0x1133B, 0x1133B}, {0x113B8, 0x113E2},
     {0x1145E, 0x1145E}, {0x1182C, 0x11B67}, {0x11D31, 0x1612F}, {0x16F4F, 0x16F4F},
     {0x16F7F, 0x16F87}, {0x16FE4, 0x16FF1}, {0x1CF00, 0x1D128}, {0x1D250, 0x1D281},
     {0x1E08F, 0x1E6F5}});
constexpr auto kPunctuationSinceUnicode8 = std::to_array<CodePoints>({{0x61D, 0x61D},
                                                                      {0x9FD, 0xA76},
                                                                      {0xC77, 0xC84},
                                                                      {0x1B4E, 0x1B4F},
                                                                      {0x1B7D, 0x1B7F},
                                                                      {0x2E43, 0x2E63},
                                                                      {0x10D6E, 0x10F89},
                                                                      {0x113D4, 0x1145D},
                                                                      {0x11660, 0x116B9},
                                                                      {0x1183B, 0x11FFF},
                                                                      {0x12FF1, 0x12FF2},
                                                                      {0x16D6D, 0x16FE2},
                                                                      {0x1E5FF, 0x1E95F}});
constexpr auto kFormatsSinceUnicode8 =
    std::to_array<CodePoints>({{0x890, 0x8E2}, {0x110CD, 0x1343F}});

template <typename Range>
const Range* find_range(std::span<const Range> ranges, char32_t code_point) {
  const auto after =
      std::upper_bound(ranges.begin(), ranges.end(), code_point,
                       [](char32_t c, const Range& range) { return c < range.first; });
  if (after == ranges.begin() || (after - 1)->last < code_point) return nullptr;
  return &*(after - 1);
}

bool in(char32_t code_point, char32_t first, char32_t last) {
  return code_point >= first && code_point <= last;
}

// Symbols that the property Other_Alphabetic makes part of words: circled and squared Latin
// letters.
bool is_letter_like_symbol(char32_t c) {
  return in(c, 0x24B6, 0x24E9) || in(c, 0x1F130, 0x1F149) || in(c, 0x1F150, 0x1F169) ||
         in(c, 0x1F170, 0x1F189);
}

constexpr char32_t kAhomConsonantSignMedialRa = 0x1171E;  // Mn until Unicode 15, Mc since 15.1

}  // namespace

std::string_view general_category(char32_t code_point) {
  const std::string_view known =
      utf8proc_category_string(static_cast<utf8proc_int32_t>(code_point));
  if (known != "Cn" && code_point != kAhomConsonantSignMedialRa) return known;
  const auto* newer = find_range<CategoryRange>(kSinceUnicode15, code_point);
  return newer ? newer->category : known;
}

bool is_whitespace(char32_t c) {
  return in(c, 0x9, 0xD) || c == ' ' || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         in(c, 0x2000, 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

bool is_punctuation(char32_t c) {
  if (c < 0x80) {
    return in(c, '!', '/') || in(c, ':', '@') || in(c, '[', '`') || in(c, '{', '~');
  }
  if (c == 0x166D || c == 0x111C9) return true;  // were, and are no more
  return general_category(c)[0] == 'P' && !find_range<CodePoints>(kPunctuationSinceUnicode8, c);
}

bool is_control(char32_t c) {
  if (c == '\t' || c == '\n' || c == '\r') return false;
  const std::string_view category = general_category(c);
  return (category == "Cc" || category == "Cf" || category == "Co") &&
         !find_range<CodePoints>(kFormatsSinceUnicode8, c);
}

bool is_accent(char32_t c) {
  if (c == 0x1734 || c == kAhomConsonantSignMedialRa) return true;  // were Mn
  return general_category(c) == "Mn" && !find_range<CodePoints>(kAccentsSinceUnicode8, c);
}

bool is_mark(char32_t c) {
  if (c == 0x1CF2 || c == 0x1CF3) return true;  // were Mc
  return general_category(c)[0] == 'M' && !find_range<CodePoints>(kMarksSinceUnicode9, c);
}

bool is_numeric(char32_t c) {
  // Digits of Unicode 17, which the reference's numeric test already knows.
  if (in(c, 0x11DE0, 0x11DE9) || in(c, 0x16FF4, 0x16FF6)) return true;
  return general_category(c)[0] == 'N';
}

bool is_word(char32_t c) {
  const std::string_view category = general_category(c);
  if (category[0] == 'L' || category[0] == 'M') return true;
  if (category == "Nd" || category == "Nl" || category == "Pc") return true;
  return c == 0x200C || c == 0x200D || is_letter_like_symbol(c);
}

void append_lowercase(std::string& out, char32_t c) {
  if (c == 0x130) {  // the only unconditional mapping to more than one code point
    out += "i\xCC\x87";
    return;
  }
  if (const auto* newer = find_range<LowerRange>(kNewLower, c)) {
    append_utf8(out, static_cast<char32_t>(static_cast<int>(c) + newer->delta));
    return;
  }
  append_utf8(out, static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))));
}

}  // namespace stretto::tokenization
