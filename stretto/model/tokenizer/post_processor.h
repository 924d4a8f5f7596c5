// The `post_processor` of a tokenizer.json: special tokens around the ids of a text
// (TemplateProcessing, BertProcessing, RobertaProcessing). ByteLevel, which only moves offsets in
// the reference, changes nothing here.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "stretto/model/tokenizer/json_node.h"

namespace stretto::tokenization {

class PostProcessor {
 public:
  // `field` may be absent; `token_exists(id)` says whether an id of a template is known. UserError
  // for any type but these and Sequence.
  PostProcessor(const std::optional<JsonNode>& field, const std::function<bool(int)>& token_exists);

  std::vector<int> apply(std::vector<int> ids, bool add_special_tokens) const;

 private:
  struct Piece {
    int sequence = -1;  // 0 or 1: the text at this place of the input; -1: special tokens
    std::vector<int> special_ids;  // for sequence -1
  };
  using Template = std::vector<Piece>;
  struct Step {
    Template single;
    Template pair;  // used when an earlier template left two sequences
  };
  using TokenExists = std::function<bool(int)>;

  void parse(const JsonNode& field, const TokenExists& token_exists);
  static Template parse_template(const JsonNode& pieces, const JsonNode& special,
                                 const TokenExists& token_exists);

  std::vector<Step> steps_;
};

}  // namespace stretto::tokenization
