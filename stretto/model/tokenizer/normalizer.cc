#include "stretto/model/tokenizer/normalizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "stretto/base/printable.h"
#include "stretto/model/tokenizer/byte_level.h"
#include "stretto/model/tokenizer/pattern.h"
#include "stretto/model/tokenizer/precompiled.h"
#include "stretto/model/tokenizer/unicode_data.h"
#include "stretto/model/tokenizer/unicode_normalize.h"
#include "stretto/model/tokenizer/utf8.h"

namespace stretto::tokenization {
namespace {

template <typename Visit>
void for_each_code_point(std::string_view text, Visit visit) {
  while (!text.empty()) {
    const Utf8Step step = next_utf8(text);
    visit(step.code_point);
    text.remove_prefix(step.length);
  }
}

bool begins_with(std::string_view text, bool (*test)(char32_t)) {
  return !text.empty() && test(first_code_point(text));
}

template <typename Keep>
std::string filtered(std::string_view text, Keep keep) {
  std::string out;
  for_each_code_point(text, [&](char32_t c) {
    if (keep(c)) append_utf8(out, c);
  });
  return out;
}

class UnicodeForm : public Normalizer {
 public:
  explicit UnicodeForm(NormalForm form) : form_(form) {}
  std::string apply(std::string_view text) const override { return normalize(text, form_); }
  // In bytes of UTF-8, of all code points: 3.5 (U+0390, written with U+1FBE).
  int most_shrinking() const override { return form_ == NormalForm::kNfc ? 4 : 0; }

 private:
  NormalForm form_;
};

class Lowercase : public Normalizer {
 public:
  std::string apply(std::string_view text) const override {
    std::string out;
    for_each_code_point(text, [&](char32_t c) { append_lowercase(out, c); });
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
  bool keeps_begin(std::string_view text, bool before) const override {
    return replace_.keeps_begin(text, before);
  }

 private:
  Replace replace_;
};

class Strip : public Normalizer {
 public:
  Strip(bool left, bool right) : left_(left), right_(right) {}
  bool keeps_begin(std::string_view text, bool before) const override {
    return before && !(left_ && begins_with(text, is_whitespace));
  }
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

class StripAccents : public Normalizer {
 public:
  std::string apply(std::string_view text) const override {
    return filtered(text, [](char32_t c) { return !is_mark(c); });
  }
  bool keeps_begin(std::string_view text, bool before) const override {
    return before && !begins_with(text, is_mark);
  }
};

// What BERT's own tokenizer did to a text.
class BertNormalizer : public Normalizer {
 public:
  explicit BertNormalizer(const JsonNode& field)
      : cleans_(field.flag_or("clean_text", true)),
        spaces_ideographs_(field.flag_or("handle_chinese_chars", true)),
        lowercases_(field.flag_or("lowercase", true)),
        strips_accents_(field.flag_or("strip_accents", lowercases_)) {}

  std::string apply(std::string_view text) const override {
    std::string out(text);
    if (cleans_) out = cleaned(out);
    if (spaces_ideographs_) out = with_spaced_ideographs(out);
    if (strips_accents_) {
      out = filtered(normalize(out, NormalForm::kNfd), [](char32_t c) { return !is_accent(c); });
    }
    return lowercases_ ? Lowercase().apply(out) : out;
  }
  bool keeps_begin(std::string_view text, bool before) const override {
    if (cleans_ && begins_with(text, is_dirt)) return false;
    return before && !(strips_accents_ && begins_with(text, is_accent));
  }

 private:
  static bool is_dirt(char32_t c) { return c == 0 || c == 0xFFFD || is_control(c); }
  static std::string cleaned(std::string_view text) {
    std::string out;
    for_each_code_point(text, [&](char32_t c) {
      if (is_dirt(c)) return;
      append_utf8(out, is_whitespace(c) ? U' ' : c);
    });
    return out;
  }
  static bool is_ideograph(char32_t c) {
    const auto in = [c](char32_t first, char32_t last) { return c >= first && c <= last; };
    return in(0x4E00, 0x9FFF) || in(0x3400, 0x4DBF) || in(0x20000, 0x2A6DF) ||
           in(0x2A700, 0x2B73F) || in(0x2B740, 0x2B81F) || in(0x2B920, 0x2CEAF) ||
           in(0xF900, 0xFAFF) || in(0x2F800, 0x2FA1F);
  }
  static std::string with_spaced_ideographs(std::string_view text) {
    std::string out;
    for_each_code_point(text, [&](char32_t c) {
      const bool spaced = is_ideograph(c);
      if (spaced) out += ' ';
      append_utf8(out, c);
      if (spaced) out += ' ';
    });
    return out;
  }

  bool cleans_, spaces_ideographs_, lowercases_, strips_accents_;
};

// SentencePiece's own, before its tables had one: controls go, odd spaces become spaces.
class Nmt : public Normalizer {
 public:
  std::string apply(std::string_view text) const override {
    std::string out;
    for_each_code_point(text, [&](char32_t c) {
      if (is_removed(c)) return;
      const auto in = [c](char32_t first, char32_t last) { return c >= first && c <= last; };
      const bool is_space = c == 0x09 || c == 0x0A || c == 0x0C || c == 0x0D || c == 0x1680 ||
                            in(0x200B, 0x200F) || c == 0x2028 || c == 0x2029 || c == 0x2581 ||
                            c == 0xFEFF || c == 0xFFFD;
      append_utf8(out, is_space ? U' ' : c);
    });
    return out;
  }
  bool keeps_begin(std::string_view text, bool before) const override {
    return before && !begins_with(text, is_removed);
  }

 private:
  static bool is_removed(char32_t c) {
    const auto in = [c](char32_t first, char32_t last) { return c >= first && c <= last; };
    return in(0x01, 0x08) || c == 0x0B || in(0x0E, 0x1F) || c == 0x7F || c == 0x8F || c == 0x9F;
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
  bool keeps_begin(std::string_view text, bool before) const override {
    std::string out(text);
    for (const auto& step : steps_) {
      before = step->keeps_begin(out, before);
      out = step->apply(out);
    }
    return before;
  }
  int most_shrinking() const override {
    int out = 1;
    for (const auto& step : steps_) out = std::min(out * step->most_shrinking(), 1 << 10);
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
  if (type == "StripAccents") return std::make_unique<StripAccents>();
  if (type == "BertNormalizer") return std::make_unique<BertNormalizer>(field);
  if (type == "Nmt") return std::make_unique<Nmt>();
  if (type == "Precompiled") return std::make_unique<Precompiled>(field);
  if (type == "Sequence") return std::make_unique<NormalizerSequence>(field);
  field.at("type").fail(fmt::format("normalizer '{}' is not supported", printable(type)));
}

}  // namespace stretto::tokenization
