#include "stretto/model/tokenizer/decoder.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "stretto/base/printable.h"
#include "stretto/model/tokenizer/byte_level.h"
#include "stretto/model/tokenizer/pattern.h"
#include "stretto/model/tokenizer/pre_tokenizer.h"
#include "stretto/model/tokenizer/utf8.h"

namespace stretto::tokenization {
namespace {

std::string with_replaced(std::string_view text, std::string_view from, std::string_view to) {
  std::string out;
  for (std::size_t at = 0;;) {
    const std::size_t found = text.find(from, at);
    out += text.substr(at, found - at);
    if (found == text.npos) return out;
    out += to;
    at = found + from.size();
  }
}

class ByteLevelDecoder : public DecoderStep {
 public:
  void apply(std::vector<std::string>& tokens) const override {
    std::string bytes;
    for (const std::string& token : tokens) append_token_bytes(bytes, token);
    tokens.assign(1, replace_invalid_utf8(bytes));
  }
  bool joins() const override { return true; }
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
  bool joins() const override { return true; }
  bool keeps_beginnings() const override { return true; }
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
  bool keeps_beginnings() const override { return true; }

 private:
  std::string content_;
  int start_;
  int stop_;
};

// Marks become spaces, but for those of the first token where a mark was put before the text.
class MetaspaceDecoder : public DecoderStep {
 public:
  explicit MetaspaceDecoder(const JsonNode& field) : options_(parse_metaspace(field)) {}
  void apply(std::vector<std::string>& tokens) const override {
    const bool prepends = options_.prepend != MetaspaceOptions::Prepend::kNever;
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      tokens[i] = with_replaced(tokens[i], options_.replacement, i == 0 && prepends ? "" : " ");
    }
  }

 private:
  MetaspaceOptions options_;
};

class WordPieceDecoder : public DecoderStep {
 public:
  explicit WordPieceDecoder(const JsonNode& field)
      : prefix_(field.text_or("prefix", "##")), cleans_up_(field.flag_or("cleanup", true)) {}
  void apply(std::vector<std::string>& tokens) const override {
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      std::string& token = tokens[i];
      if (i > 0 && token.starts_with(prefix_)) {
        token.erase(0, prefix_.size());
      } else if (i > 0) {
        token.insert(0, " ");
      }
      if (cleans_up_) clean_up(token);
    }
  }

 private:
  static void clean_up(std::string& token) {
    static constexpr std::pair<const char*, const char*> kChanges[] = {
        {" .", "."},   {" ?", "?"},     {" !", "!"},     {" ,", ","},
        {" ' ", "'"},  {" n't", "n't"}, {" 'm", "'m"},   {" do not", " don't"},
        {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"},
    };
    for (const auto& [from, to] : kChanges) token = with_replaced(token, from, to);
  }

  std::string prefix_;
  bool cleans_up_;
};

// The suffix of tokens that end words becomes a space, and nothing behind the last one.
class BpeDecoder : public DecoderStep {
 public:
  explicit BpeDecoder(const JsonNode& field) : suffix_(field.text_or("suffix", "</w>")) {
    if (suffix_.empty()) field.at("suffix").fail("is empty");
  }
  void apply(std::vector<std::string>& tokens) const override {
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      tokens[i] = with_replaced(tokens[i], suffix_, i + 1 < tokens.size() ? " " : "");
    }
  }

 private:
  std::string suffix_;
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
  concatenates_ &= !joins_by_space_;
  is_byte_level_ =
      steps_.size() == 1 && dynamic_cast<const ByteLevelDecoder*>(steps_.front().get());
  bool joined = false;
  for (const auto& step : steps_) {
    rewrites_joined_ = rewrites_joined_ || (joined && !step->keeps_beginnings());
    joined = joined || step->joins();
  }
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
  } else if (type == "Metaspace") {
    steps_.push_back(std::make_unique<MetaspaceDecoder>(field));
  } else if (type == "WordPiece") {
    steps_.push_back(std::make_unique<WordPieceDecoder>(field));
    concatenates_ = false;
  } else if (type == "BPEDecoder") {
    steps_.push_back(std::make_unique<BpeDecoder>(field));
    concatenates_ = false;
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
