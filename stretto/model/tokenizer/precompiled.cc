#include "stretto/model/tokenizer/precompiled.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "stretto/model/tokenizer/utf8.h"

namespace stretto::tokenization {
namespace {

constexpr std::size_t kLongestWhole = 5;  // bytes of a cluster that is looked up as a whole

int value_of_base64(char c) {
  if (c >= 'A' && c <= 'Z') return c - 'A';
  if (c >= 'a' && c <= 'z') return c - 'a' + 26;
  if (c >= '0' && c <= '9') return c - '0' + 52;
  return c == '+' ? 62 : c == '/' ? 63 : -1;
}

std::string decoded_base64(const JsonNode& field) {
  std::string_view text = field.text();
  if (text.size() % 4 != 0) field.fail("need base64");
  for (int i = 0; i < 2 && text.ends_with('='); ++i) text.remove_suffix(1);
  std::string out;
  std::uint32_t bits = 0;
  int count = 0;
  for (const char c : text) {
    const int value = value_of_base64(c);
    if (value < 0) field.fail("need base64");
    bits = bits << 6 | static_cast<std::uint32_t>(value);
    count += 6;
    if (count < 8) continue;
    count -= 8;
    out += static_cast<char>(bits >> count & 0xFF);
  }
  return out;
}

// A unit of the double array.
bool has_leaf(std::uint32_t unit) { return (unit >> 8 & 1) != 0; }
std::uint32_t value(std::uint32_t unit) { return unit & 0x7FFF'FFFFu; }
std::uint32_t label(std::uint32_t unit) { return unit & 0x8000'00FFu; }
std::uint32_t offset(std::uint32_t unit) { return unit >> 10 << ((unit & 1u << 9) >> 6); }

// Bytes of the extended grapheme cluster that `text` starts with.
std::size_t cluster_length(std::string_view text) {
  utf8proc_int32_t state = 0;
  Utf8Step step = next_utf8(text);
  std::size_t length = step.length;
  while (length < text.size()) {
    const Utf8Step next = next_utf8(text.substr(length));
    const auto before = static_cast<utf8proc_int32_t>(step.code_point);
    const auto after = static_cast<utf8proc_int32_t>(next.code_point);
    if (utf8proc_grapheme_break_stateful(before, after, &state)) break;
    length += next.length;
    step = next;
  }
  return length;
}

}  // namespace

Precompiled::Precompiled(const JsonNode& field) {
  const JsonNode map = field.at("precompiled_charsmap");
  const std::string bytes = decoded_base64(map);
  std::uint32_t trie_bytes = 0;
  if (bytes.size() < sizeof trie_bytes) map.fail("is too short");
  std::memcpy(&trie_bytes, bytes.data(), sizeof trie_bytes);
  const std::size_t rest = bytes.size() - sizeof trie_bytes;
  if (trie_bytes > rest || trie_bytes % sizeof(std::uint32_t) != 0 || trie_bytes == 0) {
    map.fail("its trie does not fit it");
  }
  units_.resize(trie_bytes / sizeof(std::uint32_t));
  std::memcpy(units_.data(), bytes.data() + sizeof trie_bytes, trie_bytes);
  texts_ = bytes.substr(sizeof trie_bytes + trie_bytes);
  if (!is_valid_utf8(texts_)) map.fail("its texts are no UTF-8");
}

std::optional<std::string_view> Precompiled::replacement(std::string_view text) const {
  std::size_t at = offset(units_[0]);
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte == 0) break;
    at ^= byte;
    if (at >= units_.size() || label(units_[at]) != byte) break;
    const std::uint32_t unit = units_[at];
    at ^= offset(unit);
    if (!has_leaf(unit)) continue;
    if (at >= units_.size() || value(units_[at]) > texts_.size()) break;
    const std::size_t begin = value(units_[at]);
    return std::string_view(texts_).substr(begin, texts_.find('\0', begin) - begin);
  }
  return std::nullopt;
}

std::string Precompiled::apply(std::string_view text) const {
  std::string out;
  while (!text.empty()) {
    std::string_view cluster = text.substr(0, cluster_length(text));
    text.remove_prefix(cluster.size());
    if (cluster.size() <= kLongestWhole) {
      if (const auto found = replacement(cluster)) {
        out += *found;
        continue;
      }
    }
    while (!cluster.empty()) {
      const std::string_view character = cluster.substr(0, utf8_length(cluster.front()));
      cluster.remove_prefix(character.size());
      out += replacement(character).value_or(character);
    }
  }
  return out;
}

}  // namespace stretto::tokenization
