// The `added_tokens` of a tokenizer.json: strings that are found in the text before anything else
// happens to it (or, where they are `normalized`, right after the normaliser) and stand for one id
// each, special or not.
#pragma once

#include <array>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "stretto/model/tokenizer/json_node.h"
#include "stretto/model/tokenizer/normalizer.h"
#include "stretto/model/tokenizer/vocabulary.h"

namespace stretto::tokenization {

// Finds the longest of a set of strings at a position.
class TokenTrie {
 public:
  struct Match {
    int id = -1;             // -1: no string starts here
    std::size_t length = 0;  // bytes
  };

  TokenTrie();
  bool insert(std::string_view token, int id);  // false when the string is there already
  bool empty() const { return nodes_.size() == 1; }
  std::size_t num_nodes() const { return nodes_.size(); }
  Match longest_prefix(std::string_view text) const;

 private:
  struct Node {
    int id = -1;
    std::map<char, int> children;  // indices into nodes_
  };
  std::vector<Node> nodes_;
  std::array<bool, 256> starts_{};  // bytes that some string starts with
};

struct AddedToken {
  std::string content;
  std::string
      normalized_content;  // what to look for in normalised text, and what decoding starts from
  int id = 0;
  bool single_word = false;
  bool lstrip = false;
  bool rstrip = false;
  bool normalized = false;
  bool special = false;

  bool operator==(const AddedToken&) const = default;
};

// A stretch of text, and the added token it stands for; id -1 for ordinary text.
struct TokenSpan {
  std::size_t begin;
  std::size_t end;
  int id;
};

class AddedTokens {
 public:
  // `list` may be absent. UserError when a declared id is not the one that the vocabulary, or the
  // order of tokens behind its end, gives, and for tokens that cannot be told apart. The
  // same entry twice is one.
  AddedTokens(const std::optional<JsonNode>& list, const Vocabulary& vocabulary,
              const Normalizer* normalizer);

  // Byte ranges [begin, end) of a text, in order.
  using Ranges = std::vector<std::pair<std::size_t, std::size_t>>;

  // With `split_special` special tokens are ordinary text; where they touch `plain`, always.
  std::vector<TokenSpan> split_raw(std::string_view text, bool split_special,
                                   const Ranges& plain = {}) const {
    return split(text, raw_, split_special, plain);
  }
  std::vector<TokenSpan> split_normalized(std::string_view text, bool split_special) const {
    return split(text, normalized_, split_special, {});
  }
  // Whether split_normalized() may find special tokens.
  bool normalizes_special() const { return normalizes_special_; }

  const AddedToken* find(int id) const;
  std::optional<int> id(std::string_view content) const;
  int id_limit() const { return by_id_.empty() ? 0 : by_id_.rbegin()->first + 1; }
  const std::map<int, AddedToken>& by_id() const { return by_id_; }

 private:
  void add(const JsonNode& entry, const Vocabulary& vocabulary, const Normalizer* normalizer);
  void index(const JsonNode& entry, const AddedToken& token);
  std::vector<TokenSpan> split(std::string_view text, const TokenTrie& trie, bool split_special,
                               const Ranges& plain) const;

  std::map<int, AddedToken> by_id_;
  std::map<std::string, int, std::less<>> by_content_;
  bool normalizes_special_ = false;
  int num_behind_ = 0;  // tokens that the vocabulary lacks
  TokenTrie raw_;
  TokenTrie normalized_;
};

}  // namespace stretto::tokenization
