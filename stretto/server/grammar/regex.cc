#include "stretto/server/grammar/regex.h"

#include <fmt/format.h>

#include <optional>
#include <utility>

#include "stretto/server/grammar/code_point_reader.h"

namespace stretto::grammar {
namespace {

constexpr int kMostPatternGroups = 100;
constexpr std::size_t kMostPatternBytes = 64 << 10;

const CodePoints kDigits = {{'0', '9'}};
const CodePoints kWord = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
const CodePoints kSpace = {{'\t', '\r'}, {' ', ' '}};
// Whatever some implementation takes for space.
const CodePoints kAnySpace = {{'\t', '\r'},     {0x1C, 0x20},     {0x85, 0x85},
                              {0xA0, 0xA0},     {0x1680, 0x1680}, {0x2000, 0x200A},
                              {0x2028, 0x2029}, {0x202F, 0x202F}, {0x205F, 0x205F},
                              {0x3000, 0x3000}, {0xFEFF, 0xFEFF}};
// What a dot leaves out in one implementation or another.
const CodePoints kLineEnds = {{'\n', '\n'}, {'\r', '\r'}, {0x85, 0x85}, {0x2028, 0x2029}};

class RegexParser {
 public:
  RegexParser(std::string_view pattern, const RegexOptions& options, Budget& budget)
      : in_(pattern, "regex"), options_(options), budget_(budget) {}

  ExprPtr parse() {
    std::vector<ExprPtr> branches;
    do {
      branches.push_back(branch());
    } while (in_.take_if('|'));
    if (!in_.is_end()) in_.fail("')' without '('");
    return choice(std::move(branches));
  }

 private:
  ExprPtr any_text() const { return repeat(options_.written(complement({})), 0, -1); }

  ExprPtr branch() {
    const bool has_begin = in_.take_if('^');
    ExprPtr inner = pieces(0);
    const bool has_end = in_.take_if('$');
    if (in_.peek() == '$' || in_.peek() == '^') in_.fail("an anchor that is not at an end");
    if (has_end && !in_.is_end() && in_.peek() != '|') in_.fail("'$' is not at an end");
    if (options_.matches_whole) return inner;
    std::vector<ExprPtr> parts;
    if (!has_begin) parts.push_back(any_text());
    parts.push_back(std::move(inner));
    if (!has_end) parts.push_back(any_text());
    return sequence(std::move(parts));
  }

  ExprPtr pieces(int depth) {
    std::vector<ExprPtr> parts;
    for (std::uint32_t c = in_.peek(); c != CodePointReader::kEnd && c != '|' && c != ')';
         c = in_.peek()) {
      if (c == '$' && depth == 0) break;
      if (c == '$' || c == '^') in_.fail("anchors are supported at the ends only");
      budget_.spend();
      parts.push_back(repeated(atom(depth)));
    }
    if (depth == 0 && in_.peek() == ')') in_.fail("')' without '('");
    return sequence(std::move(parts));
  }

  ExprPtr group(int depth) {
    if (depth >= kMostPatternGroups) in_.fail("groups nest too deeply");
    if (in_.take_if("?:")) {
    } else if (in_.take_if("?P<") || (in_.peek() == '?' && is_named())) {
      while (in_.peek() != '>' && in_.peek() != CodePointReader::kEnd) in_.take();
      in_.take_if('>');
    } else if (in_.peek() == '?') {
      in_.fail("groups that begin with '(?' are not supported but for '(?:' and names");
    }
    std::vector<ExprPtr> branches;
    do {
      branches.push_back(pieces(depth + 1));
    } while (in_.take_if('|'));
    if (!in_.take_if(')')) in_.fail("'(' without ')'");
    return choice(std::move(branches));
  }

  bool is_named() {
    const std::size_t at = in_.at();
    const bool begins = in_.take_if("?<");
    const bool looks_behind = in_.peek() == '=' || in_.peek() == '!';
    if (begins && !looks_behind) return true;
    in_.go_to(at);
    return false;
  }

  ExprPtr atom(int depth) {
    const std::uint32_t c = in_.take();
    switch (c) {
      case '(':
        return group(depth);
      case '[':
        return written(set());
      case '.':
        return written(complement(kLineEnds));
      case '\\':
        return written(escaped());
      case '*':
      case '+':
      case '?':
        in_.fail("nothing to repeat");
      default:
        return written({{c, c}});
    }
  }

  ExprPtr written(const CodePoints& set) {
    budget_.make_parts(5 + 5 * set.size());
    return options_.written(normalized(set));
  }

  ExprPtr repeated(ExprPtr part) {
    for (int i = 0;; ++i) {
      std::optional<std::pair<int, int>> times = quantifier();
      if (!times) return part;
      if (i > 0) in_.fail("a repetition of a repetition needs a group");
      in_.take_if('?');  // lazy or not, the same texts match
      if (in_.peek() == '+') in_.fail("possessive repetitions are not supported");
      part = repeat(std::move(part), times->first, times->second);
    }
  }

  std::optional<std::pair<int, int>> quantifier() {
    if (in_.take_if('*')) return {{0, -1}};
    if (in_.take_if('+')) return {{1, -1}};
    if (in_.take_if('?')) return {{0, 1}};
    const std::size_t begin = in_.at();
    if (!in_.take_if('{')) return std::nullopt;
    const int most = budget_.limits().repetitions;
    std::optional<int> min = in_.number(most), max = min;
    const bool has_comma = in_.take_if(',');
    if (has_comma) max = in_.number(most);
    if ((!min && !max) || !in_.take_if('}')) {
      in_.go_to(begin);
      in_.fail("need {m}, {m,} or {m,n}; a brace as such is '\\{'");
    }
    if (max && min.value_or(0) > *max) in_.fail("a repetition whose least is beyond its most");
    return {{min.value_or(0), max.value_or(-1)}};
  }

  CodePoints set() {
    const bool is_negative = in_.take_if('^');
    CodePoints out;
    for (bool is_first = true;; is_first = false) {
      const std::uint32_t c = in_.peek();
      if (c == CodePointReader::kEnd) in_.fail("'[' without ']'");
      if (c == ']' && !is_first) break;
      budget_.spend();
      CodePoints one = set_item();
      if (in_.peek() == '-') {
        const std::size_t dash = in_.at();
        in_.take();
        if (in_.peek() == ']') {
          in_.go_to(dash);
        } else {
          const CodePoints last = set_item();
          if (!is_single(one) || !is_single(last)) in_.fail("a range between what is no character");
          if (one[0].first > last[0].first) in_.fail("a range that ends before it begins");
          one = {{one[0].first, last[0].first}};
        }
      }
      out.insert(out.end(), one.begin(), one.end());
    }
    in_.take();
    return is_negative ? complement(out) : normalized(out);
  }

  static bool is_single(const CodePoints& set) {
    return set.size() == 1 && set[0].first == set[0].second;
  }

  CodePoints set_item() {
    const std::uint32_t c = in_.take();
    if (c == CodePointReader::kEnd) in_.fail("'[' without ']'");
    if (c == '[' && in_.peek() == ':') in_.fail("classes as '[:alpha:]' are not supported");
    if (c != '\\') return {{c, c}};
    if (in_.take_if('b')) return {{'\b', '\b'}};
    return escaped();
  }

  CodePoints escaped() {
    const std::uint32_t c = in_.take();
    switch (c) {
      case 'd':
        return kDigits;
      case 'D':
        return complement(kDigits);
      case 'w':
        return kWord;
      case 'W':
        return complement(kWord);
      case 's':
        return kSpace;
      case 'S':
        return complement(kAnySpace);
      case 'n':
        return {{'\n', '\n'}};
      case 'r':
        return {{'\r', '\r'}};
      case 't':
        return {{'\t', '\t'}};
      case 'f':
        return {{'\f', '\f'}};
      case 'v':
        return {{'\v', '\v'}};
      case 'a':
        return {{'\a', '\a'}};
      case '0':
        return {{0, 0}};
      case 'x':
        return single(in_.hex(2));
      case 'u':
        return single(unicode());
      case 'U':
        return single(in_.hex(8));
      default:
        break;
    }
    const bool is_letter = c < 128 && ((c | 32) >= 'a' && (c | 32) <= 'z');
    if (c == CodePointReader::kEnd || is_letter || (c >= '1' && c <= '9')) {
      in_.fail(c == CodePointReader::kEnd
                   ? std::string("a lone backslash")
                   : fmt::format("'\\{}' is not supported", static_cast<char>(c)));
    }
    return {{c, c}};
  }

  static CodePoints single(std::uint32_t c) { return {{c, c}}; }

  std::uint32_t unicode() {
    if (in_.take_if('{')) {
      std::uint32_t value = 0;
      while (!in_.take_if('}')) {
        value = value * 16 + in_.hex(1);
        if (value > kLastCodePoint) in_.fail("there is no such character");
      }
      return value;
    }
    const std::uint32_t first = in_.hex(4);
    if (first < 0xD800 || first > 0xDBFF || !in_.take_if("\\u")) return first;
    const std::uint32_t second = in_.hex(4);
    if (second < 0xDC00 || second > 0xDFFF) in_.fail("half a surrogate pair");
    return 0x10000 + ((first - 0xD800) << 10) + (second - 0xDC00);
  }

  CodePointReader in_;
  const RegexOptions& options_;
  Budget& budget_;
};

}  // namespace

ExprPtr parse_regex(std::string_view pattern, const RegexOptions& options, Budget& budget) {
  if (pattern.size() > kMostPatternBytes) {
    throw GrammarError(
        fmt::format("regex: {} bytes, at most {}", pattern.size(), kMostPatternBytes));
  }
  return RegexParser(pattern, options, budget).parse();
}

}  // namespace stretto::grammar
