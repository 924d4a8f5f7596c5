// The `pattern` objects of a tokenizer.json, {"String": ...} or {"Regex": ...}, and what the
// Replace normaliser and decoder do with them.
#pragma once

#include <string>
#include <string_view>

#include "stretto/model/tokenizer/json_node.h"
#include "stretto/model/tokenizer/regex.h"

namespace stretto::tokenization {

Regex parse_pattern(const JsonNode& field);

class Replace {
 public:
  explicit Replace(const JsonNode& field);  // {"pattern": ..., "content": ...}
  std::string apply(std::string_view text) const;
  // Whether the result begins where the original text does; `before` says so of `text`.
  bool keeps_begin(std::string_view text, bool before) const;

 private:
  Regex pattern_;
  std::string content_;
};

}  // namespace stretto::tokenization
