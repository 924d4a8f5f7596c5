#include "stretto/model/tokenizer/decoder.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "stretto/base/printable.h"
#include "stretto/model/tokenizer/byte_level.h"
#include "stretto/model/tokenizer/pattern.h"
#include "stretto/model/tokenizer/utf8.h"

namespace stretto::tokenization {
namespace {

class ByteLevelDecoder : public DecoderStep {
 public:
  void apply(std::vector<std::string>& tokens) const override {
    std::string bytes;
    for (const std::string& token : tokens) append_token_bytes(bytes, token);
    tokens.assign(1, replace_invalid_utf8(bytes));
  }
};

class ByteFallback : public DecoderStep {
 public:
  void apply(std::vector<std::string>& tokens) const override {
    std::vector<std::string> out;
    std::string run;
    for (std::string& token : tokens) {
      if (const auto byte = fallback_byte(token)) {
        run += *byte;
        continue;
      }
      flush(run, out);
      out.push_back(std::move(token));
    }
    flush(run, out);
    tokens = std::move(out);
  }

 private:
  // A run that is not UTF-8 as a whole becomes one U+FFFD per byte.
  static void flush(std::string& run, std::vector<std::string>& out) {
    if (run.empty()) return;
    if (is_valid_utf8(run)) {
      out.push_back(run);
    } else {
      out.insert(out.end(), run.size(), std::string(kReplacement));
    }
    run.clear();
  }
};

class Fuse : public DecoderStep {
 public:
  void apply(std::vector<std::string>& tokens) const override {
    std::string all;
    for (const std::string& token : tokens) all += token;
    tokens.assign(1, std::move(all));
  }
};

class ReplaceDecoder : public DecoderStep {
 public:
  explicit ReplaceDecoder(const JsonNode& field) : replace_(field) {}
  void apply(std::vector<std::string>& tokens) const override {
    for (std::string& token : tokens) token = replace_.apply(token);
  }

 private:
  Replace replace_;
};

// Takes up to `start` and `stop` copies of one character off the ends of every token.
class StripDecoder : public DecoderStep {
 public:
  explicit StripDecoder(const JsonNode& field)
      : content_(field.at("content").text()),
        start_(field.at("start").count()),
        stop_(field.at("stop").count()) {
    if (content_.empty() || utf8_length(content_.front()) != content_.size()) {
      field.at("content").fail("need one character");
    }
  }

  void apply(std::vector<std::string>& tokens) const override {
    for (std::string& token : tokens) {
      std::string_view rest = token;
      for (int i = 0; i < start_ && rest.starts_with(content_); ++i)
        rest.remove_prefix(content_.size());
      for (int i = 0; i < stop_ && rest.ends_with(content_); ++i)
        rest.remove_suffix(content_.size());
      token = std::string(rest);
    }
  }

 private:
  std::string content_;
  int start_;
  int stop_;
};

}  // namespace

std::optional<char> fallback_byte(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token.back() != '>') return std::nullopt;
  std::string_view digits = token.substr(3, 2);
  if (digits.front() == '+') digits.remove_prefix(1);  // the reference's number parser takes a sign
  unsigned int byte = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), byte, 16);
  if (error != std::errc() || end != digits.data() + digits.size()) return std::nullopt;
  return static_cast<char>(byte);
}

Decoder::Decoder(const std::optional<JsonNode>& field) : joins_by_space_(!field) {
  if (field) parse(*field);
  is_byte_level_ =
      steps_.size() == 1 && dynamic_cast<const ByteLevelDecoder*>(steps_.front().get());
}

void Decoder::parse(const JsonNode& field) {
  const std::string type = field.type();
  if (type == "Sequence") {
    for (const JsonNode& item : field.at("decoders").items()) parse(item);
  } else if (type == "ByteLevel") {
    steps_.push_back(std::make_unique<ByteLevelDecoder>());
  } else if (type == "ByteFallback") {
    steps_.push_back(std::make_unique<ByteFallback>());
  } else if (type == "Fuse") {
    steps_.push_back(std::make_unique<Fuse>());
  } else if (type == "Replace") {
    steps_.push_back(std::make_unique<ReplaceDecoder>(field));
  } else if (type == "Strip") {
    steps_.push_back(std::make_unique<StripDecoder>(field));
  } else {
    field.at("type").fail(fmt::format("decoder '{}' is not supported", printable(type)));
  }
}

std::string Decoder::apply(std::vector<std::string> tokens) const {
  for (const auto& step : steps_) step->apply(tokens);
  std::string text;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (joins_by_space_ && i > 0) text += ' ';
    text += tokens[i];
  }
  return text;
}

}  // namespace stretto::tokenization
