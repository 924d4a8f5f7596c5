// The `decoder` of a tokenizer.json: from token strings back to text.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "stretto/model/tokenizer/json_node.h"

namespace stretto::tokenization {

class DecoderStep {
 public:
  virtual ~DecoderStep() = default;
  virtual void apply(std::vector<std::string>& tokens) const = 0;
  // Makes one token of all.
  virtual bool joins() const { return false; }
  // Of a token that grows at its end, the text before stays what it is.
  virtual bool keeps_beginnings() const { return false; }
};

class Decoder {
 public:
  // `field` may be absent: tokens are then joined by spaces. UserError for any type but ByteLevel,
  // ByteFallback, Fuse, Metaspace, WordPiece, BPEDecoder, Replace, Strip and Sequence.
  explicit Decoder(const std::optional<JsonNode>& field);

  // The text of a token does not depend on its neighbours: concatenating the tokens' bytes is all
  // there is to do.
  bool is_byte_level() const { return is_byte_level_; }

  // A step acts on the joined text, as ByteLevel behind Fuse does: what another token adds may
  // change any of what is there.
  bool rewrites_joined() const { return rewrites_joined_; }
  // The same but for a space at the beginning, and with bytes for tokens such as "<0x0A>".
  bool concatenates() const { return concatenates_ && !rewrites_joined_; }

  std::string apply(std::vector<std::string> tokens) const;

 private:
  void parse(const JsonNode& field);

  bool joins_by_space_ = false;
  bool concatenates_ = true;
  bool is_byte_level_ = false;
  bool rewrites_joined_ = false;
  std::vector<std::unique_ptr<const DecoderStep>> steps_;
};

// The byte that a token such as "<0x0A>" stands for with byte fallback.
std::optional<char> fallback_byte(std::string_view token);

}  // namespace stretto::tokenization
