// What texts a grammar allows, as a tree over bytes. regex.h, gbnf.h and json_schema.h make it of
// what requests give; grammar.h compiles it.
#pragma once

#include <bitset>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace stretto::grammar {

using ByteSet = std::bitset<256>;

struct Expr;
using ExprPtr = std::shared_ptr<const Expr>;

struct Expr {
  enum class Kind : std::uint8_t {
    kText,      // these bytes; none: the empty text
    kBytes,     // one byte of a set
    kSequence,  // parts one after the other
    kChoice,    // one of the parts; none: nothing matches
    kRepeat,    // the part, min to max times; max -1: without end
    kBoth,      // what both parts match; without rules, as the next two
    kButNot,    // what the first matches and the second does not
    kMultiple,  // digits, perhaps with a point, that are `min` * 10^-`max` times a whole number
    kTerminal,  // the part, as one automaton
    kRule,      // another rule's text
  };

  Kind kind = Kind::kText;
  std::string text = {};
  ByteSet bytes = {};
  std::vector<ExprPtr> parts = {};
  int min = 0, max = -1;
  int rule = -1;
};

ExprPtr text(std::string_view bytes);
ExprPtr bytes(const ByteSet& set);
ExprPtr sequence(std::vector<ExprPtr> parts);
ExprPtr choice(std::vector<ExprPtr> parts);
ExprPtr repeat(ExprPtr part, int min, int max);
ExprPtr both(ExprPtr a, ExprPtr b);
ExprPtr but_not(ExprPtr a, ExprPtr b);
ExprPtr multiple(int divisor, int places);
ExprPtr terminal(ExprPtr part);
ExprPtr rule(int index);

inline ExprPtr optional(ExprPtr part) { return repeat(std::move(part), 0, 1); }

// The same tree gives the same text, and another one another.
std::string spelling(const Expr& expr);

// What a front end makes.
struct Rules {
  std::vector<ExprPtr> bodies;
  int root = 0;

  int add(ExprPtr body) {
    bodies.push_back(std::move(body));
    return static_cast<int>(bodies.size()) - 1;
  }
};

// Ranges of code points, both ends included.
using CodePoints = std::vector<std::pair<std::uint32_t, std::uint32_t>>;
inline constexpr std::uint32_t kLastCodePoint = 0x10FFFF;

// Sorted, without overlaps and surrogates.
CodePoints normalized(CodePoints set);
CodePoints complement(const CodePoints& set);
// Of two that are normalized.
CodePoints common(const CodePoints& a, const CodePoints& b);
// One of them in UTF-8.
ExprPtr utf8(const CodePoints& set);
void append_utf8(std::string& out, std::uint32_t code_point);

}  // namespace stretto::grammar
