// The `model` of a tokenizer.json: what makes ids of a piece of text, once normalisation and
// splitting have done their part.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "stretto/model/tokenizer/json_node.h"
#include "stretto/model/tokenizer/vocabulary.h"

namespace stretto::tokenization {

class PieceModel {
 public:
  virtual ~PieceModel() = default;

  // Appends the ids of a piece of valid UTF-8 that is not empty. Thread-safe. UserError when a
  // part is unknown and the model has no token for what is unknown.
  virtual void tokenize(std::string_view piece, std::vector<int>& ids) const = 0;
  virtual const Vocabulary& vocabulary() const = 0;
};

// BPE, Unigram, WordPiece and WordLevel; UserError for any other type, and for a missing or
// malformed field. Files of older date have no type: a model with merges is BPE, one with a list of
// pieces Unigram.
std::unique_ptr<const PieceModel> parse_piece_model(const JsonNode& model);

}  // namespace stretto::tokenization
