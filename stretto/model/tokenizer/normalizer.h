// The `normalizer` of a tokenizer.json: what happens to the text between special tokens before it
// is split.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "stretto/model/tokenizer/json_node.h"

namespace stretto::tokenization {

class Normalizer {
 public:
  virtual ~Normalizer() = default;
  virtual std::string apply(std::string_view text) const = 0;  // valid UTF-8 in and out

  // Whether apply(text) begins where the original text does, as the reference counts it: not where
  // the first character was removed. `before` says so of `text` itself.
  virtual bool keeps_begin(std::string_view /*text*/, bool before) const { return before; }

  // How many times as long as apply(text) a text may be, at most; 0: any number.
  virtual int most_shrinking() const { return 0; }
};

// NFC, NFD, NFKC, NFKD, Lowercase, Prepend, Replace, Strip, StripAccents, ByteLevel,
// BertNormalizer, Nmt, Precompiled and Sequence; UserError for any other type.
std::unique_ptr<const Normalizer> parse_normalizer(const JsonNode& field);

}  // namespace stretto::tokenization
