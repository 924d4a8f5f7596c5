// Token strings and ids of a model, as `model.vocab` of a tokenizer.json lists them; ids may have
// holes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "stretto/model/tokenizer/json_node.h"

namespace stretto::tokenization {

class Vocabulary {
 public:
  // UserError for an id that is out of range or given to two tokens.
  explicit Vocabulary(const JsonNode& vocab);
  // Of tokens whose places are their ids; of those that are spelled alike id() is the last one.
  // UserError, naming `vocab`, where there are too many.
  Vocabulary(const JsonNode& vocab, const std::vector<std::string>& tokens);
  Vocabulary(const Vocabulary&) = delete;
  Vocabulary& operator=(const Vocabulary&) = delete;

  std::optional<int> id(std::string_view token) const;
  std::optional<std::string_view> token(int id) const;
  int size() const { return static_cast<int>(ids_.size()); }
  int id_limit() const { return static_cast<int>(tokens_.size()); }  // one more than the largest id

 private:
  std::string bytes_;                     // all tokens, one behind the other
  std::vector<std::string_view> tokens_;  // by id, into bytes_; no data() where no token has the id
  std::unordered_map<std::string_view, int> ids_;
};

}  // namespace stretto::tokenization
