#include "stretto/model/tokenizer/added_tokens.h"

#include <fmt/format.h>

#include <algorithm>

#include "stretto/base/printable.h"
#include "stretto/model/tokenizer/unicode_data.h"
#include "stretto/model/tokenizer/utf8.h"

namespace stretto::tokenization {
namespace {

// Far above any real file; they bound memory, and the time to look for tokens in a hostile text.
constexpr std::size_t kMaxContentBytes = 4096;
constexpr std::size_t kMaxTrieNodes = std::size_t{1} << 22;

bool continues_word(std::string_view before, std::string_view after) {
  return (!before.empty() && is_word(last_code_point(before))) ||
         (!after.empty() && is_word(first_code_point(after)));
}

// Where the white space at the end of `text` begins.
std::size_t trailing_space(std::string_view text) {
  while (!text.empty() && is_whitespace(last_code_point(text))) {
    std::size_t start = text.size() - 1;
    while ((static_cast<unsigned char>(text[start]) & 0xC0) == 0x80) --start;
    text = text.substr(0, start);
  }
  return text.size();
}

// How many bytes of white space `text` starts with.
std::size_t leading_space(std::string_view text) {
  std::size_t length = 0;
  while (length < text.size()) {
    const Utf8Step step = next_utf8(text.substr(length));
    if (!is_whitespace(step.code_point)) break;
    length += step.length;
  }
  return length;
}

}  // namespace

TokenTrie::TokenTrie() : nodes_(1) {}

bool TokenTrie::insert(std::string_view token, int id) {
  int at = 0;
  for (const char c : token) {
    const int fresh = static_cast<int>(nodes_.size());
    const auto [child, is_new] =
        nodes_[static_cast<std::size_t>(at)].children.try_emplace(c, fresh);
    at = child->second;
    if (is_new) nodes_.emplace_back();
  }
  Node& node = nodes_[static_cast<std::size_t>(at)];
  if (node.id >= 0) return false;
  node.id = id;
  starts_[static_cast<unsigned char>(token.front())] = true;
  return true;
}

TokenTrie::Match TokenTrie::longest_prefix(std::string_view text) const {
  Match longest;
  if (!starts_[static_cast<unsigned char>(text.front())]) return longest;
  int at = 0;
  for (std::size_t length = 1; length <= text.size(); ++length) {
    const Node& node = nodes_[static_cast<std::size_t>(at)];
    const auto child = node.children.find(text[length - 1]);
    if (child == node.children.end()) break;
    at = child->second;
    const int id = nodes_[static_cast<std::size_t>(at)].id;
    if (id >= 0) longest = {id, length};
  }
  return longest;
}

AddedTokens::AddedTokens(const std::optional<JsonNode>& list, const Vocabulary& vocabulary,
                         const Normalizer* normalizer) {
  if (!list) return;
  for (const JsonNode& entry : list->items()) add(entry, vocabulary, normalizer);
}

void AddedTokens::add(const JsonNode& entry, const Vocabulary& vocabulary,
                      const Normalizer* normalizer) {
  AddedToken token{
      .content = entry.at("content").text(),
      .id = entry.at("id").token_id(),
      .single_word = entry.flag_or("single_word", false),
      .lstrip = entry.flag_or("lstrip", false),
      .rstrip = entry.flag_or("rstrip", false),
      .normalized = entry.flag_or("normalized", !entry.flag_or("special", false)),
      .special = entry.flag_or("special", false),
  };
  if (token.content.empty()) return;
  if (token.content.size() > kMaxContentBytes) {
    entry.at("content").fail(fmt::format("longer than the {} bytes allowed", kMaxContentBytes));
  }
  if (const auto earlier = by_content_.find(token.content); earlier != by_content_.end()) {
    AddedToken same = by_id_.at(earlier->second);
    same.normalized_content.clear();
    if (token == same) return;
    entry.fail(
        fmt::format("token '{}' is listed twice, and differently", printable(token.content)));
  }
  // The reference numbers tokens that the vocabulary lacks from its size on and ignores the id in
  // the file; a file in which the two differ would make the model read the wrong rows.
  const auto known = vocabulary.id(token.content);
  const int expected = known.value_or(vocabulary.size() + num_behind_);
  if (token.id != expected) {
    entry.at("id").fail(
        fmt::format("token '{}' is declared with id {}, but its place in the vocabulary is {}",
                    printable(token.content), token.id, expected));
  }
  const bool rewritten = token.normalized && normalizer;
  token.normalized_content = rewritten ? normalizer->apply(token.content) : token.content;
  index(entry, token);
  if (!known) ++num_behind_;
}

void AddedTokens::index(const JsonNode& entry, const AddedToken& token) {
  if (by_id_.contains(token.id))
    entry.fail(fmt::format("token '{}' is listed twice", printable(token.content)));
  if (token.normalized_content.empty()) {
    entry.fail(
        fmt::format("nothing is left of token '{}' after normalisation", printable(token.content)));
  }
  TokenTrie& trie = token.normalized ? normalized_ : raw_;
  if (trie.num_nodes() > kMaxTrieNodes) entry.fail("too many added tokens");
  if (!trie.insert(token.normalized_content, token.id)) {
    entry.fail(fmt::format("token '{}' cannot be told from another one after normalisation",
                           printable(token.content)));
  }
  normalizes_special_ |= token.normalized && token.special;
  by_id_.emplace(token.id, token);
  by_content_.emplace(token.content, token.id);
}

std::vector<TokenSpan> AddedTokens::split(std::string_view text, const TokenTrie& trie,
                                          bool split_special, const Ranges& plain) const {
  std::vector<TokenSpan> out;
  std::size_t done = 0;
  auto next = plain.begin();  // the first range that does not end before `at`
  for (std::size_t at = 0; !trie.empty() && at < text.size();) {
    TokenTrie::Match match = trie.longest_prefix(text.substr(at));
    while (next != plain.end() && next->second <= at) ++next;
    if (match.id >= 0 && next != plain.end() && next->first < at + match.length &&
        by_id_.at(match.id).special) {
      // What stands before the range may still be one.
      match = next->first > at ? trie.longest_prefix(text.substr(at, next->first - at))
                               : TokenTrie::Match();
    }
    if (match.id < 0) {
      ++at;
      continue;
    }
    const AddedToken& token = by_id_.at(match.id);
    std::size_t begin = at;
    std::size_t end = at + match.length;
    at = end;
    if (split_special && token.special) continue;
    if (token.single_word && continues_word(text.substr(0, begin), text.substr(end))) continue;
    if (token.lstrip) begin = std::max(trailing_space(text.substr(0, begin)), done);
    if (token.rstrip) end += leading_space(text.substr(end));
    if (done < begin) out.push_back({done, begin, -1});
    out.push_back({begin, std::max(begin, end), token.id});
    done = end;
  }
  if (done != text.size()) out.push_back({done, text.size(), -1});
  return out;
}

const AddedToken* AddedTokens::find(int id) const {
  const auto found = by_id_.find(id);
  return found == by_id_.end() ? nullptr : &found->second;
}

std::optional<int> AddedTokens::id(std::string_view content) const {
  const auto found = by_content_.find(content);
  if (found == by_content_.end()) return std::nullopt;
  return found->second;
}

}  // namespace stretto::tokenization
