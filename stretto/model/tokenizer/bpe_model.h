// The `model` of a tokenizer.json: byte pair encoding (Sennrich et al., 2016) of one piece at a
// time. It starts with one symbol per character and merges the pair with the lowest rank, the
// leftmost first, until none is left: O(n log n).
#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "stretto/model/tokenizer/json_node.h"
#include "stretto/model/tokenizer/merge_table.h"
#include "stretto/model/tokenizer/piece_cache.h"
#include "stretto/model/tokenizer/piece_model.h"
#include "stretto/model/tokenizer/vocabulary.h"

namespace stretto::tokenization {

class BpeModel final : public PieceModel {
 public:
  // UserError for a missing or malformed field, and for merges of tokens that the vocabulary lacks.
  explicit BpeModel(const JsonNode& model);

  void tokenize(std::string_view piece, std::vector<int>& ids) const override;
  const Vocabulary& vocabulary() const override { return vocabulary_; }

 private:
  struct Symbol {
    int id;  // kMerged once it has become part of the symbol to its left
    int previous;
    int next;
  };
  struct Symbols;

  void read_options(const JsonNode& model);
  void read_merges(const JsonNode& merges);
  void read_bytes();
  Symbols split(std::string_view piece) const;
  void add_unknown(std::string_view character, Symbols& symbols) const;
  void flush_unknown(Symbols& symbols) const;
  std::string decorated(std::string_view character, bool first, bool last) const;
  void merge(Symbols& symbols) const;
  int unknown_id() const;

  std::string where_;
  Vocabulary vocabulary_;
  MergeTable merges_;
  std::optional<std::string> unk_token_;
  std::string continuing_prefix_;
  std::string end_suffix_;
  bool fuse_unk_ = false;
  bool ignore_merges_ = false;
  std::optional<std::array<int, 256>>
      byte_ids_;  // of "<0x00>" and so on with byte_fallback; -1 where there is none
  mutable PieceCache cache_;
};

}  // namespace stretto::tokenization
