#include "stretto/step/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <map>

#include "stretto/base/errors.h"
#include "stretto/ir/limits.h"
#include "stretto/ir/parser.h"
#include "stretto/ir/printer.h"
#include "stretto/ir/token_reader.h"

namespace stretto::step {
namespace {

constexpr std::size_t kMaxEntries = 1 << 20;  // of each kind
constexpr std::size_t kMaxTerms = 64;
constexpr std::array kKinds = {BufferKind::kConstant, BufferKind::kState, BufferKind::kInput,
                               BufferKind::kOutput, BufferKind::kLocal};

std::string in_quotes(const std::string& text) {
  std::string out = "\"";
  for (char c : text) {
    auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (byte < 0x20 || byte >= 0x7F) {
      out += fmt::format("\\x{:02X}", byte);
    } else {
      out += c;
    }
  }
  return out + '"';
}

std::string joined(const Plan& plan, const std::vector<Size>& sizes) {
  std::string out;
  for (const Size& s : sizes) out += (out.empty() ? "" : ", ") + print_size(plan, s);
  return out;
}

std::string print_buffer(const Plan& plan, const Buffer& b) {
  return fmt::format("  {} {} : {}[{}]{}{}\n", name(b.kind), in_quotes(b.name), name(b.dtype),
                     joined(plan, b.shape), b.symmetric ? " symmetric" : "",
                     b.across_groups ? " across" : "");
}

std::string print_node(const Plan& plan, const Node& n) {
  std::string out = fmt::format("    node {} runs {} ({}) {{\n", in_quotes(n.name), n.program,
                                joined(plan, n.extents));
  for (const Binding& b : n.bindings) {
    out += fmt::format("      {} = {}", in_quotes(b.tensor),
                       in_quotes(plan.buffers[static_cast<std::size_t>(b.buffer)].name));
    if (b.from != Size{}) out += " from " + print_size(plan, b.from);
    out += '\n';
  }
  return out + "    }\n";
}

class Reader {
 public:
  Reader(std::string_view text, const std::string& where)
      : text_(text), where_(where), in_(text, where) {}

  Plan run() {
    in_.expect_word("step");
    plan_.name = in_.string("the step's name");
    in_.expect_word("group");
    plan_.group_size = static_cast<int>(in_.integer(1, kMaxWorldSize, "ranks of a group"));
    in_.expect_word("ranks");
    plan_.num_ranks = static_cast<int>(in_.integer(1, kMaxWorldSize, "ranks"));
    in_.expect_mark("{");
    while (!in_.accept_mark("}")) entry();
    if (in_.peek().kind != TokenKind::kEnd) in_.expected("the end of the text");
    for (const auto& [token, program] : used_) {
      if (program >= static_cast<std::int64_t>(plan_.programs.size())) {
        in_.fail(token, fmt::format("expected a program below {}", plan_.programs.size()));
      }
    }
    return std::move(plan_);
  }

 private:
  void entry() {
    if (in_.at_word("program")) return program();
    if (in_.accept_word("extent")) return extent();
    if (in_.accept_word("section")) return section();
    for (BufferKind kind : kKinds) {
      if (in_.accept_word(name(kind))) return buffer(kind);
    }
    in_.expected("extent, constant, state, input, output, local, section, program or '}'");
  }

  void extent() {
    Extent e{.name = new_name("an extent's name", extents_)};
    in_.expect_word("bound");
    e.bound = in_.integer(0, kMaxExtent, "a bound");
    extents_[e.name] = static_cast<int>(plan_.extents.size());
    plan_.extents.push_back(std::move(e));
  }

  void buffer(BufferKind kind) {
    Buffer b{.name = new_name("a buffer's name", buffers_), .kind = kind};
    in_.expect_mark(":");
    b.dtype = dtype();
    in_.expect_mark("[");
    b.shape = sizes("]", kMaxTensorDims);
    b.symmetric = in_.accept_word("symmetric");
    b.across_groups = in_.accept_word("across");
    buffers_[b.name] = static_cast<int>(plan_.buffers.size());
    plan_.buffers.push_back(std::move(b));
  }

  void section() {
    Section s{.name = new_name("a section's name", sections_), .begin = plan_.nodes.size()};
    sections_[s.name] = static_cast<int>(plan_.sections.size());
    in_.expect_mark("{");
    while (!in_.accept_mark("}")) node();
    s.end = plan_.nodes.size();
    plan_.sections.push_back(std::move(s));
  }

  void node() {
    in_.expect_word("node");
    Node n{.name = new_name("a node's name", nodes_)};
    nodes_[n.name] = static_cast<int>(plan_.nodes.size());
    in_.expect_word("runs");
    used_.emplace_back(in_.peek(), 0);
    n.program = static_cast<int>(in_.integer(0, kMaxEntries, "a program's number"));
    used_.back().second = n.program;
    in_.expect_mark("(");
    n.extents = sizes(")", kMaxTerms);
    in_.expect_mark("{");
    while (!in_.accept_mark("}")) n.bindings.push_back(binding());
    plan_.nodes.push_back(std::move(n));
  }

  Binding binding() {
    Binding b{.tensor = in_.string("a tensor's name"), .from = {}};
    in_.expect_mark("=");
    b.buffer = named("a buffer", buffers_);
    if (in_.accept_word("from")) b.from = size();
    return b;
  }

  // The program's text is the parser's, which reads one and nothing behind it.
  void program() {
    Token start = in_.take();
    int depth = 0;
    Token token = start;
    do {
      token = in_.take();
      if (token.kind == TokenKind::kEnd) in_.fail(start, "expected the end of this program");
      if (token.kind != TokenKind::kPunct) continue;
      if (token.text == "{") ++depth;
      if (token.text == "}") --depth;
    } while (depth != 0 || token.kind != TokenKind::kPunct || token.text != "}");
    if (plan_.programs.size() >= kMaxEntries) in_.fail(start, "expected fewer programs");
    const char* end = token.text.data() + token.text.size();
    std::string_view own(start.text.data(), static_cast<std::size_t>(end - start.text.data()));
    // Lines in errors are those of the program.
    plan_.programs.push_back(
        stretto::parse(own, fmt::format("{}: program {}", where_, plan_.programs.size())));
  }

  std::vector<Size> sizes(const char* end, std::size_t most) {
    std::vector<Size> out;
    if (in_.accept_mark(end)) return out;
    do {
      if (out.size() == most) in_.expected(fmt::format("at most {} sizes", most));
      out.push_back(size());
    } while (in_.accept_mark(","));
    in_.expect_mark(end);
    return out;
  }

  Size size() {
    Size s;
    std::vector<std::int64_t> of(plan_.extents.size(), 0);
    std::size_t terms = 0;
    bool negative = in_.accept_mark("-");
    do {
      if (++terms > kMaxTerms) in_.expected("fewer terms");
      term(negative, s, of);
      negative = in_.at_mark("-");
    } while (in_.accept_mark("-") || in_.accept_mark("+"));
    for (std::size_t e = 0; e < of.size(); ++e) {
      if (of[e] != 0) s.terms.push_back({static_cast<int>(e), of[e]});
    }
    if (in_.accept_word("over")) s.divisor = in_.integer(1, kMaxExtent, "a divisor");
    if (in_.accept_word("times")) s.factor = in_.integer(1, kMaxExtent, "a factor");
    return s;
  }

  void term(bool negative, Size& s, std::vector<std::int64_t>& of) {
    std::int64_t number = 1;
    bool is_number = in_.peek().kind == TokenKind::kNumber;
    Token at = in_.peek();
    if (is_number) number = in_.integer(0, kMaxExtent, "a number");
    if (negative) number = -number;
    std::int64_t* sum = &s.constant;
    if (!is_number || in_.accept_mark("*")) {
      sum = &of[static_cast<std::size_t>(named("an extent", extents_))];
    }
    *sum += number;
    if (std::abs(*sum) > kMaxExtent) in_.fail(at, "expected a smaller number");
  }

  DType dtype() {
    Token t = in_.expect(TokenKind::kWord, "a dtype");
    try {
      return parse_dtype(std::string(t.text));
    } catch (const UserError&) {
      in_.fail(t, "expected a dtype");
    }
  }

  using Names = std::map<std::string, int>;
  std::string new_name(const char* what, const Names& known) {
    Token at = in_.peek();
    std::string text = in_.string(what);
    if (known.contains(text)) in_.fail(at, fmt::format("{} is taken", in_quotes(text)));
    if (known.size() >= kMaxEntries) in_.fail(at, "expected fewer names");
    return text;
  }
  int named(const char* what, const Names& known) {
    Token at = in_.peek();
    auto found = known.find(in_.string(what));
    if (found == known.end()) in_.fail(at, fmt::format("expected {} declared before", what));
    return found->second;
  }

  std::string_view text_;
  const std::string& where_;
  TokenReader in_;
  Plan plan_;
  Names extents_, buffers_, sections_, nodes_;
  std::vector<std::pair<Token, std::int64_t>> used_;
};

}  // namespace

std::string print_size(const Plan& plan, const Size& size) {
  std::string out;
  auto add = [&](std::int64_t number, const std::string& name) {
    std::string sign = number < 0 ? (out.empty() ? "-" : " - ") : out.empty() ? "" : " + ";
    std::int64_t most = std::abs(number);
    bool alone = !name.empty() && most == 1;
    out += sign + (alone          ? name
                   : name.empty() ? std::to_string(most)
                                  : fmt::format("{} * {}", most, name));
  };
  for (const Size::Term& t : size.terms) {
    add(t.coefficient, in_quotes(plan.extents[static_cast<std::size_t>(t.extent)].name));
  }
  if (size.constant != 0 || out.empty()) add(size.constant, "");
  if (size.divisor != 1) out += fmt::format(" over {}", size.divisor);
  if (size.factor != 1) out += fmt::format(" times {}", size.factor);
  return out;
}

std::string print(const Plan& plan) {
  std::string out = fmt::format("step {} group {} ranks {} {{\n", in_quotes(plan.name),
                                plan.group_size, plan.num_ranks);
  for (const Extent& e : plan.extents) {
    out += fmt::format("  extent {} bound {}\n", in_quotes(e.name), e.bound);
  }
  for (const Buffer& b : plan.buffers) out += print_buffer(plan, b);
  for (const Section& s : plan.sections) {
    out += fmt::format("  section {} {{\n", in_quotes(s.name));
    for (std::size_t i = s.begin; i < s.end; ++i) out += print_node(plan, plan.nodes[i]);
    out += "  }\n";
  }
  for (const Program& p : plan.programs) out += stretto::print(p) + "\n";
  return out + "}\n";
}

Plan parse(std::string_view text, const std::string& where) {
  if (text.size() > kMaxTextBytes) {
    throw UserError(fmt::format("{}: a step plan of more than {} bytes", where, kMaxTextBytes));
  }
  return Reader(text, where).run();
}

}  // namespace stretto::step
