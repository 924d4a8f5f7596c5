// The `pre_tokenizer` of a tokenizer.json: cuts normalised text into the pieces that merges never
// cross, and, for byte-level models, rewrites them in the byte-level alphabet.
#pragma once

#include <cstdint>
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
  bool is_first = true;  // nothing of the input stands, or stood, before the text
};

// Of the Metaspace pre-tokenizer and decoder.
struct MetaspaceOptions {
  enum class Prepend : std::uint8_t { kAlways, kFirst, kNever };  // to which pieces
  std::string replacement;                                        // of a space; one character
  Prepend prepend = Prepend::kAlways;
};
MetaspaceOptions parse_metaspace(const JsonNode& field);

class PreTokenizer {
 public:
  virtual ~PreTokenizer() = default;
  virtual void apply(Pieces& pieces) const = 0;
  virtual bool asks_for_first() const { return false; }  // reads Pieces::is_first
  virtual bool keeps_text() const { return false; }      // its spans cover the text
  virtual bool makes_byte_level() const { return false; }
};

// ByteLevel, Metaspace, Split, Digits, Punctuation, Whitespace, WhitespaceSplit, BertPreTokenizer,
// CharDelimiterSplit and Sequence; UserError for any other type.
std::unique_ptr<const PreTokenizer> parse_pre_tokenizer(const JsonNode& field);

}  // namespace stretto::tokenization
