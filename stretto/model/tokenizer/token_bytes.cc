#include <algorithm>

#include "stretto/base/errors.h"
#include "stretto/model/tokenizer/byte_level.h"
#include "stretto/model/tokenizer/tokenizer.h"
#include "stretto/model/tokenizer/tokenizer_impl.h"

namespace stretto {
namespace {

// A token behind which others can be looked at.
int plain_token(const Tokenizer& tokenizer) {
  for (int id = 0; id < tokenizer.id_limit(); ++id) {
    if (!tokenizer.id_to_token(id) || tokenizer.is_special(id)) continue;
    const std::string text = tokenizer.decode({&id, 1}, false);
    const bool is_plain = std::all_of(text.begin(), text.end(), [](char c) {
      return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    });
    if (is_plain && !text.empty()) return id;
  }
  throw UserError("the tokenizer has no token of letters");
}

}  // namespace

std::vector<std::string> Tokenizer::token_bytes() const {
  if (!impl_->decoder.concatenates()) {
    throw UserError(
        "this model's tokens have no text of their own: what they add depends on their neighbours");
  }
  std::vector<std::string> out(static_cast<std::size_t>(id_limit()));
  if (impl_->decoder.is_byte_level()) {
    for (int id = 0; id < id_limit(); ++id) {
      const auto token = impl_->token(id);
      if (token) tokenization::append_token_bytes(out[static_cast<std::size_t>(id)], *token);
    }
    return out;
  }
  const int before = plain_token(*this);
  const std::size_t skipped = decode({&before, 1}, false).size();
  for (int id = 0; id < id_limit(); ++id) {
    const auto token = impl_->token(id);
    if (!token) continue;
    const int ids[] = {before, id};
    std::string text = decode(ids, false);
    text.erase(0, std::min(skipped, text.size()));
    const auto byte = tokenization::fallback_byte(*token);
    if (byte && text != *token) text = std::string(1, *byte);
    out[static_cast<std::size_t>(id)] = std::move(text);
  }
  return out;
}

bool Tokenizer::strips_first_space() const {
  if (impl_->decoder.is_byte_level()) return false;
  const auto ids = encode("a b", {.add_special_tokens = false});
  for (int id : ids) {
    const int twice[] = {id, id};
    const std::string one = decode({&id, 1}, false), two = decode(twice, false);
    if (two.size() > 2 * one.size() && two.substr(one.size()) == " " + one) return true;
  }
  return false;
}

}  // namespace stretto
