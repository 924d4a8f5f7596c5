// Unigram language model (Kudo, "Subword Regularization", ACL 2018, section 3.2): of all ways to
// cut a piece into tokens the one with the largest sum of scores, found by dynamic programming from
// left to right.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "stretto/model/tokenizer/piece_model.h"

namespace stretto::tokenization {

class UnigramModel final : public PieceModel {
 public:
  // UserError for a missing or malformed field, and for scores that are no numbers.
  explicit UnigramModel(const JsonNode& model);

  void tokenize(std::string_view piece, std::vector<int>& ids) const override;
  const Vocabulary& vocabulary() const override { return vocabulary_; }

 private:
  // Calls visit(length, id) for every token that `text` starts with, shortest first.
  template <typename Visit>
  void for_each_prefix(std::string_view text, Visit visit) const;
  // The tokens of the best way, unknown ones that follow each other joined: [begin, end) and id.
  struct Part {
    std::size_t begin, end;
    int id;
  };
  std::vector<Part> best_parts(std::string_view piece) const;
  void append_unknown(std::string_view part, std::vector<int>& ids) const;

  std::string where_;
  Vocabulary vocabulary_;
  std::vector<double> scores_;                            // [id]
  std::vector<std::pair<std::string_view, int>> sorted_;  // by token
  double unknown_score_ = 0;
  std::optional<int> unknown_id_;
  std::optional<std::array<int, 256>> byte_ids_;  // with byte_fallback; -1 where there is none
};

}  // namespace stretto::tokenization
