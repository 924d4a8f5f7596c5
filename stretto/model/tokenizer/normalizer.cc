#include "stretto/model/tokenizer/normalizer.h"

#include <fmt/format.h>

#include <vector>

#include "stretto/base/printable.h"
#include "stretto/model/tokenizer/byte_level.h"
#include "stretto/model/tokenizer/pattern.h"
#include "stretto/model/tokenizer/unicode_data.h"
#include "stretto/model/tokenizer/unicode_normalize.h"
#include "stretto/model/tokenizer/utf8.h"

namespace stretto::tokenization {
namespace {

class UnicodeForm : public Normalizer {
 public:
  explicit UnicodeForm(NormalForm form) : form_(form) {}
  std::string apply(std::string_view text) const override { return normalize(text, form_); }

 private:
  NormalForm form_;
};

class Lowercase : public Normalizer {
 public:
  std::string apply(std::string_view text) const override {
    std::string out;
    while (!text.empty()) {
      const Utf8Step step = next_utf8(text);
      append_lowercase(out, step.code_point);
      text.remove_prefix(step.length);
    }
    return out;
  }
};

class Prepend : public Normalizer {
 public:
  explicit Prepend(std::string prefix) : prefix_(std::move(prefix)) {}
  std::string apply(std::string_view text) const override {
    if (text.empty()) return {};
    return prefix_ + std::string(text);
  }

 private:
  std::string prefix_;
};

class ReplaceNormalizer : public Normalizer {
 public:
  explicit ReplaceNormalizer(const JsonNode& field) : replace_(field) {}
  std::string apply(std::string_view text) const override { return replace_.apply(text); }

 private:
  Replace replace_;
};

class Strip : public Normalizer {
 public:
  Strip(bool left, bool right) : left_(left), right_(right) {}
  std::string apply(std::string_view text) const override {
    while (left_ && !text.empty() && is_whitespace(first_code_point(text))) {
      text.remove_prefix(utf8_length(text.front()));
    }
    while (right_ && !text.empty() && is_whitespace(last_code_point(text))) {
      std::size_t end = text.size() - 1;
      while ((static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
      text = text.substr(0, end);
    }
    return std::string(text);
  }

 private:
  bool left_;
  bool right_;
};

class ByteLevelNormalizer : public Normalizer {
 public:
  std::string apply(std::string_view text) const override {
    std::string out;
    append_byte_level(out, text);
    return out;
  }
};

class NormalizerSequence : public Normalizer {
 public:
  explicit NormalizerSequence(const JsonNode& field) {
    for (const JsonNode& item : field.at("normalizers").items())
      steps_.push_back(parse_normalizer(item));
  }
  std::string apply(std::string_view text) const override {
    std::string out(text);
    for (const auto& step : steps_) out = step->apply(out);
    return out;
  }

 private:
  std::vector<std::unique_ptr<const Normalizer>> steps_;
};

}  // namespace

std::unique_ptr<const Normalizer> parse_normalizer(const JsonNode& field) {
  const std::string type = field.type();
  if (type == "NFC") return std::make_unique<UnicodeForm>(NormalForm::kNfc);
  if (type == "NFD") return std::make_unique<UnicodeForm>(NormalForm::kNfd);
  if (type == "NFKC") return std::make_unique<UnicodeForm>(NormalForm::kNfkc);
  if (type == "NFKD") return std::make_unique<UnicodeForm>(NormalForm::kNfkd);
  if (type == "Lowercase") return std::make_unique<Lowercase>();
  if (type == "Prepend") return std::make_unique<Prepend>(field.at("prepend").text());
  if (type == "Replace") return std::make_unique<ReplaceNormalizer>(field);
  if (type == "Strip") {
    return std::make_unique<Strip>(field.at("strip_left").flag(), field.at("strip_right").flag());
  }
  if (type == "ByteLevel") return std::make_unique<ByteLevelNormalizer>();
  if (type == "Sequence") return std::make_unique<NormalizerSequence>(field);
  field.at("type").fail(fmt::format("normalizer '{}' is not supported", printable(type)));
}

}  // namespace stretto::tokenization
