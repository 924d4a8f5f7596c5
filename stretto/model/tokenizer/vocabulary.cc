#include "stretto/model/tokenizer/vocabulary.h"

#include <fmt/format.h>

#include <algorithm>

#include "stretto/base/json.h"
#include "stretto/base/printable.h"

namespace stretto::tokenization {

Vocabulary::Vocabulary(const JsonNode& vocab) {
  const Json& json = vocab.json();
  if (!json.is_object()) vocab.fail("need an object of token: id");
  std::size_t bytes = 0;
  int limit = 0;
  for (const auto& [token, id] : json.items()) {
    if (!id.is_number_unsigned() || id.get<std::uint64_t>() >= kMaxTokenIds) {
      vocab.fail(
          fmt::format("token '{}': need an id from 0 to {}", printable(token), kMaxTokenIds - 1));
    }
    limit = std::max(limit, id.get<int>() + 1);
    bytes += token.size();
  }
  bytes_.reserve(bytes + 1);  // a data() that is not null even when every token is empty
  tokens_.resize(static_cast<std::size_t>(limit));
  ids_.reserve(json.size());
  for (const auto& [token, value] : json.items()) {
    const auto id = value.get<std::size_t>();
    if (tokens_[id].data()) {
      vocab.fail(fmt::format("tokens '{}' and '{}' have the same id {}", printable(tokens_[id]),
                             printable(token), id));
    }
    const char* start = bytes_.data() + bytes_.size();
    bytes_ += token;
    tokens_[id] = std::string_view(start, token.size());
    ids_.emplace(tokens_[id], static_cast<int>(id));
  }
}

Vocabulary::Vocabulary(const JsonNode& vocab, const std::vector<std::string>& tokens) {
  if (tokens.size() > kMaxTokenIds) {
    vocab.fail(fmt::format("{} tokens, at most {}", tokens.size(), kMaxTokenIds));
  }
  std::size_t bytes = 0;
  for (const std::string& token : tokens) bytes += token.size();
  bytes_.reserve(bytes + 1);
  ids_.reserve(tokens.size());
  for (const std::string& token : tokens) {
    const char* start = bytes_.data() + bytes_.size();
    bytes_ += token;
    ids_[std::string_view(start, token.size())] = static_cast<int>(tokens_.size());
    tokens_.emplace_back(start, token.size());
  }
}

std::optional<int> Vocabulary::id(std::string_view token) const {
  const auto found = ids_.find(token);
  if (found == ids_.end()) return std::nullopt;
  return found->second;
}

std::optional<std::string_view> Vocabulary::token(int id) const {
  if (id < 0 || id >= id_limit()) return std::nullopt;
  const std::string_view token = tokens_[static_cast<std::size_t>(id)];
  if (!token.data()) return std::nullopt;
  return token;
}

}  // namespace stretto::tokenization
