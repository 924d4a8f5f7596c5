// The `pre_tokenizer` of a tokenizer.json: cuts normalised text into the pieces that merges never
// cross, and, for byte-level models, rewrites them in the byte-level alphabet.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "stretto/model/tokenizer/json_node.h"
#include "stretto/model/tokenizer/regex.h"

namespace stretto::tokenization {

// Spans of `text`, in order, none of them empty; they need not cover the text.
struct Pieces {
  std::string text;
  std::vector<Span> spans;
};

class PreTokenizer {
 public:
  virtual ~PreTokenizer() = default;
  virtual void apply(Pieces& pieces) const = 0;
};

// ByteLevel, Split, Digits and Sequence; UserError for any other type.
std::unique_ptr<const PreTokenizer> parse_pre_tokenizer(const JsonNode& field);

}  // namespace stretto::tokenization
