#include "stretto/server/grammar/gbnf.h"

#include <fmt/format.h>

#include <map>
#include <optional>
#include <string>
#include <utility>

#include "stretto/base/printable.h"
#include "stretto/server/grammar/code_point_reader.h"

namespace stretto::grammar {
namespace {

constexpr int kMostGroups = 100;
constexpr std::size_t kMostGrammarBytes = 256 << 10;

bool is_name(std::uint32_t c) {
  return c < 128 &&
         (((c | 32) >= 'a' && (c | 32) <= 'z') || (c >= '0' && c <= '9') || c == '-' || c == '_');
}

class GbnfParser {
 public:
  GbnfParser(std::string_view source, Budget& budget)
      : source_(source), in_(source, "grammar"), budget_(budget) {}

  Rules parse() {
    skip(true);
    while (!in_.is_end()) rule_definition();
    for (const auto& [name, index] : index_) {
      if (!rules_.bodies[static_cast<std::size_t>(index)]) {
        throw GrammarError(
            fmt::format("grammar: the rule '{}' is not defined", printable(name, 80)));
      }
    }
    auto root = index_.find("root");
    if (root == index_.end()) throw GrammarError("grammar: there is no rule 'root'");
    rules_.root = root->second;
    return std::move(rules_);
  }

 private:
  // Space and comments; line ends too where `with_lines`.
  void skip(bool with_lines) {
    for (;;) {
      const std::uint32_t c = in_.peek();
      if (c == '#') {
        while (!in_.is_end() && in_.peek() != '\n' && in_.peek() != '\r') in_.take();
      } else if (c == ' ' || c == '\t' || (with_lines && (c == '\n' || c == '\r'))) {
        in_.take();
      } else {
        return;
      }
    }
  }

  std::string name() {
    const std::size_t begin = in_.at();
    while (is_name(in_.peek())) in_.take();
    if (in_.at() == begin) in_.fail("need a rule's name");
    return std::string(source_.substr(begin, in_.at() - begin));
  }

  int index_of(const std::string& name) {
    auto [at, is_new] = index_.try_emplace(name, static_cast<int>(rules_.bodies.size()));
    if (is_new) {
      budget_.make_rule(rules_.bodies.size());
      rules_.bodies.push_back(nullptr);
    }
    return at->second;
  }

  void rule_definition() {
    const std::string its_name = name();
    skip(false);
    if (!in_.take_if("::=")) in_.fail("need '::=' after a rule's name");
    skip(true);
    const int index = index_of(its_name);
    if (rules_.bodies[static_cast<std::size_t>(index)]) {
      in_.fail(fmt::format("the rule '{}' is defined twice", printable(its_name, 80)));
    }
    ExprPtr body = alternatives(0);
    rules_.bodies[static_cast<std::size_t>(index)] = std::move(body);
    const std::uint32_t c = in_.peek();
    if (c != CodePointReader::kEnd && c != '\n' && c != '\r') in_.fail("need the end of the line");
    skip(true);
  }

  ExprPtr alternatives(int depth) {
    std::vector<ExprPtr> out;
    for (;;) {
      out.push_back(parts(depth));
      if (!in_.take_if('|')) return choice(std::move(out));
      skip(true);
    }
  }

  ExprPtr parts(int depth) {
    std::vector<ExprPtr> out;
    for (;;) {
      skip(depth > 0);
      budget_.make_parts(2);
      std::optional<ExprPtr> part = atom(depth);
      if (!part) return sequence(std::move(out));
      out.push_back(repeated(std::move(*part), depth));
    }
  }

  std::optional<ExprPtr> atom(int depth) {
    const std::uint32_t c = in_.peek();
    if (c == '"') return quoted();
    if (c == '[') return set();
    if (c == '.') {
      in_.take();
      return utf8(complement({}));
    }
    if (c == '(') {
      if (depth >= kMostGroups) in_.fail("groups nest too deeply");
      in_.take();
      skip(true);
      ExprPtr inner = alternatives(depth + 1);
      skip(true);
      if (!in_.take_if(')')) in_.fail("'(' without ')'");
      return inner;
    }
    if (is_name(c)) return rule(index_of(name()));
    return std::nullopt;
  }

  ExprPtr repeated(ExprPtr part, int depth) {
    skip(depth > 0);
    if (in_.take_if('*')) return repeat(std::move(part), 0, -1);
    if (in_.take_if('+')) return repeat(std::move(part), 1, -1);
    if (in_.take_if('?')) return repeat(std::move(part), 0, 1);
    if (!in_.take_if('{')) return part;
    const int most = budget_.limits().repetitions;
    std::optional<int> min = in_.number(most), max = min;
    if (in_.take_if(',')) max = in_.number(most);
    if ((!min && !max) || !in_.take_if('}')) in_.fail("need {m}, {m,} or {m,n}");
    if (max && min.value_or(0) > *max) in_.fail("a repetition whose least is beyond its most");
    return repeat(std::move(part), min.value_or(0), max.value_or(-1));
  }

  std::uint32_t character() {
    const std::uint32_t c = in_.take();
    if (c == CodePointReader::kEnd || c == '\n') in_.fail("a quote or bracket is not closed");
    if (c != '\\') return c;
    const std::uint32_t escaped = in_.take();
    switch (escaped) {
      case 'n':
        return '\n';
      case 'r':
        return '\r';
      case 't':
        return '\t';
      case 'x':
        return in_.hex(2);
      case 'u':
        return whole_character(in_.hex(4));
      case 'U':
        return whole_character(in_.hex(8));
      case '"':
      case '\\':
      case '[':
      case ']':
      case '-':
      case '^':
      case '.':
      case '/':
        return escaped;
      default:
        in_.fail("an escape that is not known");
    }
  }

  std::uint32_t whole_character(std::uint32_t c) const {
    if (c >= 0xD800 && c <= 0xDFFF) {
      in_.fail(fmt::format("U+{:04X} is half a surrogate pair, which no text has", c));
    }
    return c;
  }

  ExprPtr quoted() {
    in_.take();
    std::string out;
    while (!in_.take_if('"')) append_utf8(out, character());
    return text(out);
  }

  ExprPtr set() {
    in_.take();
    const bool is_negative = in_.take_if('^');
    CodePoints out;
    while (!in_.take_if(']')) {
      const std::uint32_t low = character();
      std::uint32_t high = low;
      const std::size_t dash = in_.at();
      if (in_.take_if('-')) {
        if (in_.peek() == ']') {
          in_.go_to(dash);
        } else {
          high = character();
        }
      }
      if (low > high) in_.fail("a range that ends before it begins");
      budget_.make_parts(5);
      out.emplace_back(low, high);
    }
    return utf8(is_negative ? complement(out) : normalized(out));
  }

  std::string_view source_;
  CodePointReader in_;
  Budget& budget_;
  Rules rules_;
  std::map<std::string, int> index_;
};

}  // namespace

Rules parse_gbnf(std::string_view source, Budget& budget) {
  if (source.size() > kMostGrammarBytes) {
    throw GrammarError(
        fmt::format("grammar: {} bytes, at most {}", source.size(), kMostGrammarBytes));
  }
  return GbnfParser(source, budget).parse();
}

}  // namespace stretto::grammar
