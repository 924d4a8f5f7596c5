// The parts that a Tokenizer is put together from; private to tokenizer.cc and stream_decoder.cc.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "stretto/model/tokenizer/added_tokens.h"
#include "stretto/model/tokenizer/decoder.h"
#include "stretto/model/tokenizer/json_node.h"
#include "stretto/model/tokenizer/normalizer.h"
#include "stretto/model/tokenizer/piece_model.h"
#include "stretto/model/tokenizer/post_processor.h"
#include "stretto/model/tokenizer/pre_tokenizer.h"
#include "stretto/model/tokenizer/tokenizer.h"
#include "stretto/model/tokenizer/tokenizer_config.h"

namespace stretto {

struct Tokenizer::Impl {
  Impl(const tokenization::JsonNode& file, const std::optional<tokenization::JsonNode>& config);

  // `is_first`: nothing of the input stands before the text.
  void encode_text(std::string_view text, bool is_first, const EncodeOptions& options,
                   std::vector<int>& ids) const;
  // Bytes [begin, end) of a text, in which no added token stands before the normaliser.
  void encode_parts(std::string_view text, std::size_t begin, std::size_t end,
                    const EncodeOptions& options, std::vector<int>& ids) const;
  void encode_normalized(std::string_view text, bool is_first, std::vector<int>& ids) const;

  // The token as decoding sees it: of added tokens the normalised form. Nothing where no token has
  // the id.
  std::optional<std::string_view> token(int id) const;

  // The same, and nothing for special tokens that are to be left out. UserError for negative ids.
  std::optional<std::string_view> visible_token(int id, bool skip_special_tokens) const;
  std::string decode_chain(const std::vector<int>& ids, bool skip_special_tokens) const;

  bool is_special(int id) const;
  std::optional<int> id(std::string_view token) const;
  std::optional<int> configured_id(const std::optional<tokenization::JsonNode>& config,
                                   const char* name) const;

  std::unique_ptr<const tokenization::PieceModel> model;
  std::unique_ptr<const tokenization::Normalizer>
      normalizer;  // null where the file has none, as below
  std::unique_ptr<const tokenization::PreTokenizer> pre_tokenizer;
  tokenization::AddedTokens added;
  tokenization::PostProcessor post_processor;
  tokenization::Decoder decoder;
  std::optional<int> bos_id;
  std::optional<int> eos_id;
  std::optional<int> pad_id;
  std::optional<int> unk_id;
  Warnings warnings;
};

}  // namespace stretto
