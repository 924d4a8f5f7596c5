#include "stretto/model/tokenizer/tokenizer.h"

#include <fmt/format.h>

#include <algorithm>

#include "stretto/base/downloaded_file.h"
#include "stretto/base/errors.h"
#include "stretto/base/json.h"
#include "stretto/base/printable.h"
#include "stretto/base/python_json.h"
#include "stretto/model/tokenizer/byte_level.h"
#include "stretto/model/tokenizer/tokenizer_impl.h"
#include "stretto/model/tokenizer/utf8.h"

namespace stretto {

using tokenization::JsonNode;

namespace {

constexpr std::size_t kMaxTextBytes = std::size_t{1} << 30;

JsonNode checked_model(const JsonNode& file) {
  if (const auto version = file.find("version"); version && version->text() != "1.0") {
    version->fail(fmt::format("'{}' is not known, need '1.0'", printable(version->text())));
  }
  return file.at("model");
}

std::unique_ptr<const tokenization::Normalizer> optional_normalizer(
    const std::optional<JsonNode>& field) {
  return field ? parse_normalizer(*field) : nullptr;
}

std::unique_ptr<const tokenization::PreTokenizer> optional_pre_tokenizer(
    const std::optional<JsonNode>& field) {
  return field ? parse_pre_tokenizer(*field) : nullptr;
}

// What a directory without tokenizer.json may have in its place, for the error.
std::string other_vocabularies(const std::filesystem::path& dir) {
  for (const char* name : {"tokenizer.model", "vocab.json", "vocab.txt", "tekken.json"}) {
    if (!is_absent(dir / name)) return fmt::format("; '{}' is not read", name);
  }
  return "";
}

std::string json_path(const std::string& where, const char* name) {
  return (std::filesystem::path(where) / name).string();
}

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

Tokenizer::Impl::Impl(const JsonNode& file, const std::optional<JsonNode>& config)
    : model(parse_piece_model(checked_model(file))),
      normalizer(optional_normalizer(file.find("normalizer"))),
      pre_tokenizer(optional_pre_tokenizer(file.find("pre_tokenizer"))),
      added(file.find("added_tokens"), model->vocabulary(), normalizer.get()),
      post_processor(file.find("post_processor"), [this](int id) { return token(id).has_value(); }),
      decoder(file.find("decoder")),
      bos_id(configured_id(config, "bos_token")),
      eos_id(configured_id(config, "eos_token")),
      pad_id(configured_id(config, "pad_token")),
      unk_id(configured_id(config, "unk_token")) {
  if (!config) return;
  warnings = tokenization::compare_with_config(
      *config, {.file = file.path(),
                .id_of = [this](std::string_view text) { return id(text); },
                .added = &added,
                .around = post_processor.apply({tokenization::kText}, true)});
}

std::optional<int> Tokenizer::Impl::configured_id(const std::optional<JsonNode>& config,
                                                  const char* name) const {
  const auto text = config ? tokenization::configured_token(*config, name) : std::nullopt;
  return text ? id(*text) : std::nullopt;
}

std::optional<int> Tokenizer::Impl::id(std::string_view token) const {
  const auto id = added.id(token);
  return id ? id : model->vocabulary().id(token);
}

std::optional<std::string_view> Tokenizer::Impl::token(int id) const {
  if (const auto* token = added.find(id)) return token->normalized_content;
  return model->vocabulary().token(id);
}

bool Tokenizer::Impl::is_special(int id) const {
  const auto* token = added.find(id);
  if (!token) return false;
  // The reference asks for the token's decoded spelling, which a normaliser may have changed.
  const auto same = added.id(token->normalized_content);
  return same && added.find(*same)->special;
}

std::optional<std::string_view> Tokenizer::Impl::visible_token(int id,
                                                               bool skip_special_tokens) const {
  if (id < 0) throw UserError(fmt::format("token id {} is negative", id));
  if (skip_special_tokens && is_special(id)) return std::nullopt;
  return token(id);
}

void Tokenizer::Impl::encode_normalized(std::string_view text, bool is_first,
                                        std::vector<int>& ids) const {
  tokenization::Pieces pieces{std::string(text), {{0, text.size()}}, is_first};
  if (pre_tokenizer) pre_tokenizer->apply(pieces);
  for (const auto& [begin, end] : pieces.spans) {
    model->tokenize(std::string_view(pieces.text).substr(begin, end - begin), ids);
  }
}

void Tokenizer::Impl::encode_text(std::string_view text, bool is_first,
                                  const EncodeOptions& options, std::vector<int>& ids) const {
  const auto normalized = normalizer ? normalizer->apply(text) : std::string(text);
  if (is_first && normalizer && pre_tokenizer && pre_tokenizer->asks_for_first()) {
    is_first = normalizer->keeps_begin(text, true);
  }
  for (const auto& [begin, end, id] :
       added.split_normalized(normalized, options.split_special_tokens)) {
    if (begin == end) continue;
    if (id >= 0) {
      ids.push_back(id);
    } else {
      encode_normalized(std::string_view(normalized).substr(begin, end - begin),
                        is_first && begin == 0, ids);
    }
  }
}

// Normalising moves bytes: where special tokens are looked for behind it, plain ranges go apart.
void Tokenizer::Impl::encode_parts(std::string_view text, std::size_t begin, std::size_t end,
                                   const EncodeOptions& options, std::vector<int>& ids) const {
  auto encode = [&](std::size_t from, std::size_t to, bool is_plain) {
    if (from == to) return;
    encode_text(text.substr(from, to - from), from == 0,
                {.split_special_tokens = options.split_special_tokens || is_plain}, ids);
  };
  if (!added.normalizes_special()) return encode(begin, end, false);
  for (const auto& [from, to] : options.plain_ranges) {
    if (to <= begin || from >= end) continue;
    encode(begin, std::max(begin, from), false);
    encode(std::max(begin, from), std::min(end, to), true);
    begin = std::min(end, to);
  }
  encode(begin, end, false);
}

std::string Tokenizer::Impl::decode_chain(const std::vector<int>& ids,
                                          bool skip_special_tokens) const {
  std::vector<std::string> tokens;
  for (const int id : ids) {
    if (const auto token = visible_token(id, skip_special_tokens)) tokens.emplace_back(*token);
  }
  return decoder.apply(std::move(tokens));
}

Tokenizer Tokenizer::load(const std::filesystem::path& dir) {
  constexpr std::size_t kMaxBytes = JsonLimits{}.max_bytes;
  check_model_directory(dir);
  const std::filesystem::path file = dir / "tokenizer.json";
  const std::filesystem::path config = dir / "tokenizer_config.json";
  const std::filesystem::path map = dir / "special_tokens_map.json";
  if (is_absent(file)) {
    throw UserError(fmt::format("{}: is missing{}", file.string(), other_vocabularies(dir)));
  }
  const std::string tokenizer_json = read_downloaded_file(file, kMaxBytes);
  std::optional<std::string> config_json;
  if (!is_absent(config)) config_json = read_downloaded_file(config, kMaxBytes);
  std::optional<std::string> map_json;
  if (!is_absent(map)) map_json = read_downloaded_file(map, kMaxBytes);
  return parse(tokenizer_json, config_json, dir.string(), map_json);
}

Tokenizer Tokenizer::parse(std::string_view tokenizer_json,
                           const std::optional<std::string>& config_json, const std::string& where,
                           const std::optional<std::string>& map_json) {
  const std::string path = json_path(where, "tokenizer.json");
  const Json file = parse_json(tokenizer_json, path);
  Json config;
  std::optional<JsonNode> config_field;
  if (config_json) {
    const std::string config_path = json_path(where, "tokenizer_config.json");
    config = parse_python_json(*config_json, config_path);
    config_field.emplace(config, config_path + ": ");
  }
  auto impl = std::make_shared<Impl>(JsonNode(file, path + ": "), config_field);
  if (map_json && config_field) {
    const std::string map_path = json_path(where, "special_tokens_map.json");
    const Json map = parse_python_json(*map_json, map_path);
    Warnings differing = tokenization::compare_names(*config_field, JsonNode(map, map_path + ": "));
    impl->warnings.insert(impl->warnings.end(), differing.begin(), differing.end());
  }
  return Tokenizer(std::move(impl));
}

std::vector<int> Tokenizer::encode(std::string_view text, const EncodeOptions& options) const {
  if (text.size() > kMaxTextBytes) {
    throw UserError(fmt::format("text of {} bytes, at most {} can be tokenized at once",
                                text.size(), kMaxTextBytes));
  }
  std::string repaired;
  STRETTO_CHECK(options.plain_ranges.empty() || tokenization::is_valid_utf8(text),
                "ranges of a text that is no UTF-8");
  if (!tokenization::is_valid_utf8(text)) {
    repaired = tokenization::replace_invalid_utf8(text);
    text = repaired;
  }
  std::vector<int> ids;
  for (const auto& [begin, end, id] :
       impl_->added.split_raw(text, options.split_special_tokens, options.plain_ranges)) {
    if (begin == end) continue;
    if (id >= 0) {
      ids.push_back(id);
    } else {
      impl_->encode_parts(text, begin, end, options, ids);
    }
  }
  return impl_->post_processor.apply(std::move(ids), options.add_special_tokens);
}

std::string Tokenizer::decode(std::span<const int> ids, bool skip_special_tokens) const {
  if (!impl_->decoder.is_byte_level()) {
    return impl_->decode_chain({ids.begin(), ids.end()}, skip_special_tokens);
  }
  std::string bytes;
  for (const int id : ids) {
    if (const auto token = impl_->visible_token(id, skip_special_tokens)) {
      tokenization::append_token_bytes(bytes, *token);
    }
  }
  return tokenization::replace_invalid_utf8(bytes);
}

std::optional<int> Tokenizer::token_to_id(std::string_view token) const { return impl_->id(token); }

std::optional<std::string> Tokenizer::id_to_token(int id) const {
  const auto token = impl_->token(id);
  if (!token) return std::nullopt;
  return std::string(*token);
}

bool Tokenizer::is_special(int id) const { return impl_->is_special(id); }

const Warnings& Tokenizer::warnings() const { return impl_->warnings; }

int Tokenizer::vocab_size() const {
  const auto& vocabulary = impl_->model->vocabulary();
  const auto is_new = [&](const auto& entry) { return !vocabulary.id(entry.second.content); };
  const auto& added = impl_->added.by_id();
  return vocabulary.size() + static_cast<int>(std::count_if(added.begin(), added.end(), is_new));
}

int Tokenizer::id_limit() const {
  return std::max(impl_->model->vocabulary().id_limit(), impl_->added.id_limit());
}

std::optional<int> Tokenizer::bos_id() const { return impl_->bos_id; }
std::optional<int> Tokenizer::eos_id() const { return impl_->eos_id; }
std::optional<int> Tokenizer::pad_id() const { return impl_->pad_id; }
std::optional<int> Tokenizer::unk_id() const { return impl_->unk_id; }

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

std::optional<std::size_t> Tokenizer::most_text_of_a_token() const {
  const Impl& impl = *impl_;
  // Each byte becomes a character of the byte-level alphabet, of which tokens are made.
  if (!impl.decoder.is_byte_level() || !impl.pre_tokenizer || !impl.pre_tokenizer->keeps_text() ||
      !impl.pre_tokenizer->makes_byte_level()) {
    return std::nullopt;
  }
  for (int byte = 0; byte < 256; ++byte) {
    std::string character;
    const char value = static_cast<char>(byte);
    tokenization::append_byte_level(character, {&value, 1});
    if (!impl.model->vocabulary().id(character)) return std::nullopt;
  }
  for (const auto& [id, token] : impl.added.by_id()) {
    if (token.lstrip || token.rstrip) return std::nullopt;  // with as many spaces as there are
  }
  std::size_t most = 1;
  for (const std::string& bytes : token_bytes()) most = std::max(most, bytes.size());
  const int shrinks = impl.normalizer ? impl.normalizer->most_shrinking() : 1;
  if (shrinks == 0) return std::nullopt;
  return most * static_cast<std::size_t>(shrinks);
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
