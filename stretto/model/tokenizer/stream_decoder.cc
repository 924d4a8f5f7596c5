#include <algorithm>

#include "stretto/model/tokenizer/byte_level.h"
#include "stretto/model/tokenizer/tokenizer.h"
#include "stretto/model/tokenizer/tokenizer_impl.h"
#include "stretto/model/tokenizer/utf8.h"

namespace stretto {

using tokenization::Utf8Step;

std::string StreamDecoder::push(int id) {
  return tokenizer_.impl_->decoder.is_byte_level() ? push_bytes(id) : push_chain(id);
}

std::string StreamDecoder::push_bytes(int id) {
  const auto token = tokenizer_.impl_->visible_token(id, skip_special_tokens_);
  if (token) tokenization::append_token_bytes(pending_, *token);
  std::string out;
  std::string_view rest = pending_;
  while (!rest.empty()) {
    const Utf8Step step = tokenization::next_utf8(rest);
    if (step.kind == Utf8Step::Kind::kTruncated) break;
    const bool valid = step.kind == Utf8Step::Kind::kValid;
    out += valid ? rest.substr(0, step.length) : tokenization::kReplacement;
    rest.remove_prefix(step.length);
  }
  pending_.erase(0, pending_.size() - rest.size());
  return out;
}

// Decoders other than the byte-level one look at neighbouring tokens, so the whole text is decoded
// again: quadratic in the number of ids, but cheap beside generating them.
std::string StreamDecoder::push_chain(int id) {
  const auto token = tokenizer_.impl_->visible_token(id, skip_special_tokens_);
  if (!token) return {};
  ids_.push_back(id);
  if (tokenizer_.impl_->decoder.rewrites_joined()) return {};
  if (tokenization::fallback_byte(*token)) return {};
  const std::string text = tokenizer_.decode(ids_, skip_special_tokens_);
  if (!text.starts_with(emitted_) || text.ends_with(tokenization::kReplacement)) return {};
  std::string out = text.substr(emitted_.size());
  emitted_ = text;
  return out;
}

std::string StreamDecoder::finish() {
  std::string out;
  if (tokenizer_.impl_->decoder.is_byte_level()) {
    out = tokenization::replace_invalid_utf8(pending_);
  } else {
    const std::string text = tokenizer_.decode(ids_, skip_special_tokens_);
    out = text.substr(std::min(text.size(), emitted_.size()));
  }
  pending_.clear();
  ids_.clear();
  emitted_.clear();
  return out;
}

}  // namespace stretto
