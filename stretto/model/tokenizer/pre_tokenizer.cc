#include "stretto/model/tokenizer/pre_tokenizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <optional>

#include "stretto/base/printable.h"
#include "stretto/model/tokenizer/byte_level.h"
#include "stretto/model/tokenizer/pattern.h"
#include "stretto/model/tokenizer/unicode_data.h"
#include "stretto/model/tokenizer/utf8.h"

namespace stretto::tokenization {
namespace {

constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

struct Segment {
  Span span;
  bool is_match;
};

enum class Behavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };

Behavior parse_behavior(const JsonNode& field) {
  const std::string& name = field.text();
  if (name == "Removed") return Behavior::kRemoved;
  if (name == "Isolated") return Behavior::kIsolated;
  if (name == "MergedWithPrevious") return Behavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return Behavior::kMergedWithNext;
  if (name == "Contiguous") return Behavior::kContiguous;
  field.fail(fmt::format("behavior '{}' is not known", printable(name)));
}

// The matches and what lies between them, covering a text of `size` bytes.
std::vector<Segment> segments(const std::vector<Span>& matches, std::size_t size) {
  std::vector<Segment> out;
  std::size_t done = 0;
  for (const Span& match : matches) {
    if (match.begin != done) out.push_back({{done, match.begin}, false});
    out.push_back({match, true});
    done = match.end;
  }
  if (done != size) out.push_back({{done, size}, false});
  return out;
}

// A match joins the segment before it, unless that one is a match as well.
std::vector<Span> merge_with_previous(const std::vector<Segment>& segments) {
  std::vector<Span> out;
  bool previous_match = false;
  for (const auto& [span, is_match] : segments) {
    if (is_match && !previous_match && !out.empty()) {
      out.back().end = span.end;
    } else {
      out.push_back(span);
    }
    previous_match = is_match;
  }
  return out;
}

std::vector<Span> merge_with_next(const std::vector<Segment>& segments) {
  std::vector<Span> out;
  bool previous_match = false;
  for (auto segment = segments.rbegin(); segment != segments.rend(); ++segment) {
    if (segment->is_match && !previous_match && !out.empty()) {
      out.back().begin = segment->span.begin;
    } else {
      out.push_back(segment->span);
    }
    previous_match = segment->is_match;
  }
  std::reverse(out.begin(), out.end());
  return out;
}

std::vector<Span> merge_contiguous(const std::vector<Segment>& segments) {
  std::vector<Span> out;
  bool previous_match = false;
  for (const auto& [span, is_match] : segments) {
    if (is_match == previous_match && !out.empty()) {
      out.back().end = span.end;
    } else {
      out.push_back(span);
    }
    previous_match = is_match;
  }
  return out;
}

std::vector<Span> resolve(const std::vector<Segment>& segments, Behavior behavior) {
  switch (behavior) {
    case Behavior::kMergedWithPrevious:
      return merge_with_previous(segments);
    case Behavior::kMergedWithNext:
      return merge_with_next(segments);
    case Behavior::kContiguous:
      return merge_contiguous(segments);
    case Behavior::kRemoved:
    case Behavior::kIsolated:
      break;
  }
  std::vector<Span> out;
  for (const auto& [span, is_match] : segments) {
    if (!is_match || behavior == Behavior::kIsolated) out.push_back(span);
  }
  return out;
}

// Replaces every piece by the parts that `split(text of the piece)` returns, empty ones left out.
template <typename SplitPiece>
void split_each(Pieces& pieces, SplitPiece split) {
  std::vector<Span> spans;
  spans.reserve(pieces.spans.size());
  for (const Span& piece : pieces.spans) {
    const auto text = std::string_view(pieces.text).substr(piece.begin, piece.end - piece.begin);
    for (const Span& part : split(text)) {
      if (part.begin != part.end)
        spans.push_back({piece.begin + part.begin, piece.begin + part.end});
    }
  }
  pieces.spans = std::move(spans);
}

class Split : public PreTokenizer {
 public:
  explicit Split(const JsonNode& field)
      : pattern_(parse_pattern(field.at("pattern"))),
        behavior_(parse_behavior(field.at("behavior"))),
        invert_(field.flag_or("invert", false)) {}

  void apply(Pieces& pieces) const override {
    split_each(pieces, [this](std::string_view text) {
      std::vector<Segment> found = segments(pattern_.find_all(text), text.size());
      if (invert_) {
        for (Segment& segment : found) segment.is_match = !segment.is_match;
      }
      return resolve(found, behavior_);
    });
  }

  bool keeps_text() const override { return behavior_ != Behavior::kRemoved; }

 private:
  Regex pattern_;
  Behavior behavior_;
  bool invert_;
};

// Splits at single characters that a test picks.
class CharacterSplit : public PreTokenizer {
 public:
  using Test = std::function<bool(char32_t)>;
  CharacterSplit(Test test, Behavior behavior) : test_(std::move(test)), behavior_(behavior) {}

  void apply(Pieces& pieces) const override {
    split_each(pieces, [this](std::string_view text) {
      std::vector<Span> matches;
      for (std::size_t at = 0; at < text.size();) {
        const Utf8Step step = next_utf8(text.substr(at));
        if (test_(step.code_point)) matches.push_back({at, at + step.length});
        at += step.length;
      }
      return resolve(segments(matches, text.size()), behavior_);
    });
  }

  bool keeps_text() const override { return behavior_ != Behavior::kRemoved; }

 private:
  Test test_;
  Behavior behavior_;
};

std::unique_ptr<const PreTokenizer> parse_digits(const JsonNode& field) {
  bool alone = field.flag_or("individual_digits", false);
  return std::make_unique<CharacterSplit>(is_numeric,
                                          alone ? Behavior::kIsolated : Behavior::kContiguous);
}

std::unique_ptr<const PreTokenizer> parse_punctuation(const JsonNode& field) {
  const auto behavior = field.find("behavior");
  return std::make_unique<CharacterSplit>(
      is_punctuation, behavior ? parse_behavior(*behavior) : Behavior::kIsolated);
}

std::unique_ptr<const PreTokenizer> parse_delimiter(const JsonNode& field) {
  const std::string& text = field.at("delimiter").text();
  if (text.empty() || utf8_length(text.front()) != text.size()) {
    field.at("delimiter").fail("need one character");
  }
  const char32_t delimiter = first_code_point(text);
  return std::make_unique<CharacterSplit>([delimiter](char32_t c) { return c == delimiter; },
                                          Behavior::kRemoved);
}

// Runs of word characters, and of what is neither that nor white space.
class Whitespace : public PreTokenizer {
 public:
  void apply(Pieces& pieces) const override {
    split_each(pieces, [](std::string_view text) {
      std::vector<Span> out;
      int before = 0;
      for (std::size_t at = 0; at < text.size();) {
        const Utf8Step step = next_utf8(text.substr(at));
        const int kind = is_whitespace(step.code_point) ? 0 : is_word(step.code_point) ? 1 : 2;
        if (kind != 0 && kind == before) {
          out.back().end = at + step.length;
        } else if (kind != 0) {
          out.push_back({at, at + step.length});
        }
        before = kind;
        at += step.length;
      }
      return out;
    });
  }
};

class Bert : public PreTokenizer {
 public:
  void apply(Pieces& pieces) const override {
    spaces_.apply(pieces);
    punctuation_.apply(pieces);
  }

 private:
  CharacterSplit spaces_{is_whitespace, Behavior::kRemoved};
  CharacterSplit punctuation_{is_punctuation, Behavior::kIsolated};
};

// SentencePiece's: spaces become a visible character, which begins words.
class Metaspace : public PreTokenizer {
 public:
  explicit Metaspace(const JsonNode& field)
      : options_(parse_metaspace(field)), splits_(field.flag_or("split", true)) {}

  void apply(Pieces& pieces) const override {
    const std::string& mark = options_.replacement;
    Pieces out{.text = {}, .spans = {}, .is_first = pieces.is_first};
    for (const Span& piece : pieces.spans) {
      const auto text = std::string_view(pieces.text).substr(piece.begin, piece.end - piece.begin);
      const std::size_t begin = out.text.size();
      if (prepends_to(text, pieces.is_first && piece.begin == 0)) out.text += mark;
      for (const char c : text) {
        if (c == ' ') {
          out.text += mark;
        } else {
          out.text += c;
        }
      }
      out.spans.push_back({begin, out.text.size()});
    }
    pieces = std::move(out);
    if (!splits_) return;
    split_each(pieces, [&](std::string_view text) {
      std::vector<Span> marks;
      for (std::size_t at = text.find(mark); at != text.npos;
           at = text.find(mark, at + mark.size())) {
        marks.push_back({at, at + mark.size()});
      }
      return merge_with_next(segments(marks, text.size()));
    });
  }
  bool asks_for_first() const override {
    return options_.prepend == MetaspaceOptions::Prepend::kFirst;
  }

 private:
  bool prepends_to(std::string_view text, bool is_first) const {
    if (text.starts_with(options_.replacement) || text.starts_with(' ')) return false;
    return options_.prepend == MetaspaceOptions::Prepend::kAlways ||
           (options_.prepend == MetaspaceOptions::Prepend::kFirst && is_first);
  }

  MetaspaceOptions options_;
  bool splits_;
};

class ByteLevel : public PreTokenizer {
 public:
  explicit ByteLevel(const JsonNode& field)
      : add_prefix_space_(field.flag_or("add_prefix_space", true)) {
    if (field.flag_or("use_regex", true)) pattern_ = Regex(kGpt2Pattern, field.path());
  }

  void apply(Pieces& pieces) const override {
    if (add_prefix_space_) prefix_spaces(pieces);
    if (pattern_) {
      split_each(pieces, [this](std::string_view text) {
        return resolve(segments(pattern_->find_all(text), text.size()), Behavior::kIsolated);
      });
    }
    rewrite(pieces);
  }

  bool keeps_text() const override { return true; }
  bool makes_byte_level() const override { return true; }

 private:
  static void prefix_spaces(Pieces& pieces) {
    Pieces out{.text = {}, .spans = {}, .is_first = pieces.is_first};
    for (const Span& piece : pieces.spans) {
      const std::size_t begin = out.text.size();
      if (pieces.text[piece.begin] != ' ') out.text += ' ';
      out.text.append(pieces.text, piece.begin, piece.end - piece.begin);
      out.spans.push_back({begin, out.text.size()});
    }
    pieces = std::move(out);
  }

  static void rewrite(Pieces& pieces) {
    std::string text;
    text.reserve(pieces.text.size() + pieces.text.size() / 2);
    for (Span& piece : pieces.spans) {
      const std::size_t begin = text.size();
      append_byte_level(text,
                        std::string_view(pieces.text).substr(piece.begin, piece.end - piece.begin));
      piece = {begin, text.size()};
    }
    pieces.text = std::move(text);
  }

  bool add_prefix_space_;
  std::optional<Regex> pattern_;
};

class PreTokenizerSequence : public PreTokenizer {
 public:
  explicit PreTokenizerSequence(const JsonNode& field) {
    for (const JsonNode& item : field.at("pretokenizers").items())
      steps_.push_back(parse_pre_tokenizer(item));
  }
  void apply(Pieces& pieces) const override {
    for (const auto& step : steps_) step->apply(pieces);
  }
  bool asks_for_first() const override {
    return std::any_of(steps_.begin(), steps_.end(),
                       [](const auto& step) { return step->asks_for_first(); });
  }
  bool keeps_text() const override {
    return std::all_of(steps_.begin(), steps_.end(),
                       [](const auto& step) { return step->keeps_text(); });
  }
  bool makes_byte_level() const override {
    return std::any_of(steps_.begin(), steps_.end(),
                       [](const auto& step) { return step->makes_byte_level(); });
  }

 private:
  std::vector<std::unique_ptr<const PreTokenizer>> steps_;
};

}  // namespace

MetaspaceOptions parse_metaspace(const JsonNode& field) {
  MetaspaceOptions options{.replacement = field.at("replacement").text()};
  const std::string& mark = options.replacement;
  if (mark.empty() || utf8_length(mark.front()) != mark.size()) {
    field.at("replacement").fail("need one character");
  }
  using Prepend = MetaspaceOptions::Prepend;
  const bool adds = field.flag_or("add_prefix_space", true);  // files of older date
  const auto scheme = field.find("prepend_scheme");
  if (!scheme) {
    options.prepend = adds ? Prepend::kAlways : Prepend::kNever;
    return options;
  }
  const std::string& name = scheme->text();
  if (name == "always") {
    options.prepend = Prepend::kAlways;
  } else if (name == "first") {
    options.prepend = Prepend::kFirst;
  } else if (name == "never") {
    options.prepend = Prepend::kNever;
  } else {
    scheme->fail(fmt::format("'{}' is not known, need always, first or never", printable(name)));
  }
  if (!adds && options.prepend != Prepend::kNever) {
    scheme->fail(fmt::format("'{}' contradicts add_prefix_space, which is false", name));
  }
  return options;
}

std::unique_ptr<const PreTokenizer> parse_pre_tokenizer(const JsonNode& field) {
  const std::string type = field.type();
  if (type == "ByteLevel") return std::make_unique<ByteLevel>(field);
  if (type == "Split") return std::make_unique<Split>(field);
  if (type == "Digits") return parse_digits(field);
  if (type == "Metaspace") return std::make_unique<Metaspace>(field);
  if (type == "Punctuation") return parse_punctuation(field);
  if (type == "Whitespace") return std::make_unique<Whitespace>();
  if (type == "WhitespaceSplit") {
    return std::make_unique<CharacterSplit>(is_whitespace, Behavior::kRemoved);
  }
  if (type == "BertPreTokenizer") return std::make_unique<Bert>();
  if (type == "CharDelimiterSplit") return parse_delimiter(field);
  if (type == "Sequence") return std::make_unique<PreTokenizerSequence>(field);
  field.at("type").fail(fmt::format("pre-tokenizer '{}' is not supported", printable(type)));
}

}  // namespace stretto::tokenization
