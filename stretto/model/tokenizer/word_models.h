// Models whose pieces are words: WordPiece, the longest token first (Wu et al., "Google's Neural
// Machine Translation System", arXiv 1609.08144, section 4.1; as BERT uses it), and WordLevel, a
// token a word.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "stretto/model/tokenizer/piece_model.h"

namespace stretto::tokenization {

class WordPieceModel final : public PieceModel {
 public:
  explicit WordPieceModel(const JsonNode& model);

  void tokenize(std::string_view piece, std::vector<int>& ids) const override;
  const Vocabulary& vocabulary() const override { return vocabulary_; }

 private:
  std::string where_;
  Vocabulary vocabulary_;
  std::string unk_token_, prefix_;  // of tokens that do not begin a word
  std::size_t max_characters_;      // of a word; longer ones are unknown
};

class WordLevelModel final : public PieceModel {
 public:
  explicit WordLevelModel(const JsonNode& model);

  void tokenize(std::string_view piece, std::vector<int>& ids) const override;
  const Vocabulary& vocabulary() const override { return vocabulary_; }

 private:
  std::string where_;
  Vocabulary vocabulary_;
  std::string unk_token_;
};

}  // namespace stretto::tokenization
