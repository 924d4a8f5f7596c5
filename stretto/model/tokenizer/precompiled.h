// The `Precompiled` normaliser: SentencePiece's table of replacements, as a double-array trie of
// byte strings (Aoe, "An Efficient Digital Search Algorithm by Using a Double-Array Structure",
// IEEE TSE 15(9), 1989) and the texts that they become.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "stretto/model/tokenizer/normalizer.h"

namespace stretto::tokenization {

class Precompiled final : public Normalizer {
 public:
  // UserError where precompiled_charsmap is no base64, or its parts do not fit it.
  explicit Precompiled(const JsonNode& field);
  std::string apply(std::string_view text) const override;

 private:
  // What stands for the shortest beginning of `text` that is in the table.
  std::optional<std::string_view> replacement(std::string_view text) const;

  std::vector<std::uint32_t> units_;
  std::string texts_;  // each ends in a zero byte
};

}  // namespace stretto::tokenization
