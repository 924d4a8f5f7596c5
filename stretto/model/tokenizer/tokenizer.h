// Text to token ids and back, exactly as the Hugging Face `tokenizers` library does it: byte-level
// BPE (GPT-2, Llama-3, Qwen2 and kin), BPE and Unigram of SentencePiece (Llama-2, Mistral, T5),
// WordPiece (BERT). Comes before the model's embedding and
// after its sampler; reads nothing but tokenizer.json and tokenizer_config.json. The way of a text:
// added tokens are cut out, the rest is normalised, split into pieces, and each piece merged into
// ids; the post-processor puts special tokens around the result.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "stretto/base/sources.h"

namespace stretto {

struct EncodeOptions {
  // What the post-processor puts around a text, such as its begin token.
  bool add_special_tokens = true;
  // Special tokens that the text spells out are taken as ordinary text: what users write can then
  // never become one. The name is that of the Hugging Face library.
  bool split_special_tokens = false;
  // The same for parts of the text: byte ranges [begin, end) in order. A special token has to stand
  // outside them as a whole.
  std::vector<std::pair<std::size_t, std::size_t>> plain_ranges = {};
};

// Immutable once loaded and safe to share between threads; copies share the tables.
class Tokenizer {
 public:
  // `dir` is a model directory in Hugging Face form; tokenizer_config.json may be absent. UserError
  // naming file and field for anything missing, malformed, contradictory or of a type that is not
  // supported. Padding and truncation settings are ignored: this class always encodes the whole
  // text.
  static Tokenizer load(const std::filesystem::path& dir);

  // The same from memory; `where` stands for the directory in errors. `map_json`, of
  // special_tokens_map.json, is compared with the config and not used otherwise.
  static Tokenizer parse(std::string_view tokenizer_json,
                         const std::optional<std::string>& config_json, const std::string& where,
                         const std::optional<std::string>& map_json = std::nullopt);

  // Invalid UTF-8 counts as U+FFFD, one per maximal invalid subpart. UserError for more than 1 GiB.
  std::vector<int> encode(std::string_view text, const EncodeOptions& options = {}) const;

  // Always valid UTF-8. Ids that no token has (padding of the model's vocabulary) stand for
  // nothing; UserError for negative ones.
  std::string decode(std::span<const int> ids, bool skip_special_tokens = true) const;

  std::optional<int> token_to_id(std::string_view token) const;
  std::optional<std::string> id_to_token(
      int id) const;  // as the vocabulary spells it, not as it decodes
  bool is_special(int id) const;

  // What each id adds to a text that has begun, by id: bytes, which may be a part of a character.
  // Empty for ids that no token has. UserError where tokens have none of their own, because what
  // they add depends on their neighbours (WordPiece).
  std::vector<std::string> token_bytes() const;
  // Bytes of a text that one token may stand for, at most: a text of more than n times as many has
  // more than n tokens. Nothing where there is no such bound: where a normaliser or pre-tokenizer
  // leaves text out, or a token stands for any unknown word.
  std::optional<std::size_t> most_text_of_a_token() const;
  // A space at the beginning of a text is left out when it is decoded.
  bool strips_first_space() const;

  // What tokenizer_config.json tells otherwise than tokenizer.json, which counts.
  const Warnings& warnings() const;

  int vocab_size() const;  // number of tokens, added ones included
  int id_limit() const;    // one more than the largest id

  // As tokenizer_config.json names them; nothing where it does not, or names a token that does not
  // exist.
  std::optional<int> bos_id() const;
  std::optional<int> eos_id() const;
  std::optional<int> pad_id() const;
  std::optional<int> unk_id() const;

 private:
  friend class StreamDecoder;
  struct Impl;
  explicit Tokenizer(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}

  std::shared_ptr<const Impl> impl_;
};

// Decodes ids as they are generated and holds back what later ids may still change: an unfinished
// code point, with byte fallback an unfinished run of bytes, and all of the text where the decoder
// rewrites what it has joined. All returned strings together equal decode() of all ids.
class StreamDecoder {
 public:
  explicit StreamDecoder(Tokenizer tokenizer, bool skip_special_tokens = true)
      : tokenizer_(std::move(tokenizer)), skip_special_tokens_(skip_special_tokens) {}

  std::string push(int id);
  std::string finish();  // what was held back; the decoder may then be used for the next text

 private:
  std::string push_bytes(int id);
  std::string push_chain(int id);

  Tokenizer tokenizer_;
  bool skip_special_tokens_;
  std::string pending_;   // byte-level: bytes of an unfinished code point
  std::vector<int> ids_;  // other decoders: all ids so far ...
  std::string emitted_;   // ... and the text returned for them
};

}  // namespace stretto
