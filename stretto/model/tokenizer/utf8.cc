#include "stretto/model/tokenizer/utf8.h"

namespace stretto::tokenization {
namespace {

struct Lead {
  int length = 0;  // 0: no sequence starts with this byte
  unsigned char second_min = 0x80;
  unsigned char second_max = 0xBF;
};

// The range of the second byte rules out overlong forms, surrogates and code points above U+10FFFF.
Lead classify(unsigned char byte) {
  if (byte < 0x80) return {.length = 1};
  if (byte < 0xC2) return {};
  if (byte < 0xE0) return {.length = 2};
  if (byte == 0xE0) return {.length = 3, .second_min = 0xA0};
  if (byte == 0xED) return {.length = 3, .second_max = 0x9F};
  if (byte < 0xF0) return {.length = 3};
  if (byte == 0xF0) return {.length = 4, .second_min = 0x90};
  if (byte == 0xF4) return {.length = 4, .second_max = 0x8F};
  if (byte < 0xF4) return {.length = 4};
  return {};
}

}  // namespace

Utf8Step next_utf8(std::string_view text) {
  const auto first = static_cast<unsigned char>(text[0]);
  const Lead lead = classify(first);
  if (lead.length == 0) return {Utf8Step::Kind::kInvalid, 0, 1};
  if (lead.length == 1) return {Utf8Step::Kind::kValid, first, 1};
  char32_t code_point = first & (0x7F >> lead.length);
  for (int i = 1; i < lead.length; ++i) {
    const auto at = static_cast<std::size_t>(i);
    if (at == text.size()) return {Utf8Step::Kind::kTruncated, 0, at};
    const auto byte = static_cast<unsigned char>(text[at]);
    const unsigned char min = i == 1 ? lead.second_min : 0x80;
    const unsigned char max = i == 1 ? lead.second_max : 0xBF;
    if (byte < min || byte > max) return {Utf8Step::Kind::kInvalid, 0, at};
    code_point = (code_point << 6) | (byte & 0x3F);
  }
  return {Utf8Step::Kind::kValid, code_point, static_cast<std::size_t>(lead.length)};
}

bool is_valid_utf8(std::string_view text) {
  while (!text.empty()) {
    const Utf8Step step = next_utf8(text);
    if (step.kind != Utf8Step::Kind::kValid) return false;
    text.remove_prefix(step.length);
  }
  return true;
}

std::string replace_invalid_utf8(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const Utf8Step step = next_utf8(text);
    out += step.kind == Utf8Step::Kind::kValid ? text.substr(0, step.length) : kReplacement;
    text.remove_prefix(step.length);
  }
  return out;
}

void append_utf8(std::string& out, char32_t code_point) {
  const auto put = [&out](char32_t byte) { out += static_cast<char>(byte); };
  if (code_point < 0x80) {
    put(code_point);
  } else if (code_point < 0x800) {
    put(0xC0 | (code_point >> 6));
    put(0x80 | (code_point & 0x3F));
  } else if (code_point < 0x10000) {
    put(0xE0 | (code_point >> 12));
    put(0x80 | ((code_point >> 6) & 0x3F));
    put(0x80 | (code_point & 0x3F));
  } else {
    put(0xF0 | (code_point >> 18));
    put(0x80 | ((code_point >> 12) & 0x3F));
    put(0x80 | ((code_point >> 6) & 0x3F));
    put(0x80 | (code_point & 0x3F));
  }
}

char32_t first_code_point(std::string_view text) { return next_utf8(text).code_point; }

char32_t last_code_point(std::string_view text) {
  std::size_t at = text.size() - 1;
  while (at > 0 && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80) --at;
  return next_utf8(text.substr(at)).code_point;
}

std::size_t utf8_length(char lead) {
  const auto byte = static_cast<unsigned char>(lead);
  return byte < 0x80 ? 1 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4;
}

}  // namespace stretto::tokenization
