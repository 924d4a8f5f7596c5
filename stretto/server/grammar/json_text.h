// Pieces of JSON as a grammar sees them: strings, numbers within bounds, space, values.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "stretto/base/json_fwd.h"
#include "stretto/server/grammar/budget.h"
#include "stretto/server/grammar/expr.h"

namespace stretto::grammar {

// Between tokens of JSON: nothing, a space, or up to two line ends with up to 20 spaces or tabs.
// Without bounds models write space until their tokens are spent. Compact: nothing.
ExprPtr json_space(bool is_compact);

// A character of a set inside quotes, in the one way in which writers escape it.
ExprPtr json_characters(const CodePoints& set);
// Any character in that way.
ExprPtr json_plain_character();
// Any character, escaped in any way. Halves of surrogate pairs are none.
ExprPtr json_any_character();
// In quotes, as a terminal.
ExprPtr json_string(ExprPtr content);
// The text in quotes with what must be escaped.
std::string json_quoted(std::string_view text);

// A number as people write it. GrammarError where it needs more than 60 digits.
struct Decimal {
  bool is_negative = false;
  std::string whole = "0", fraction;  // without needless zeros

  static Decimal of(const Json& number);
  bool is_whole() const { return fraction.empty(); }
};

struct NumberBounds {
  std::optional<Decimal> min, max;
  bool excludes_min = false, excludes_max = false;
  std::optional<Decimal> multiple;  // of which they are multiples

  bool any() const { return min || max; }
};

// GrammarError where an automaton would need too many states.
void check_multiple(const Decimal& divisor);

// As terminals; with bounds, numbers have no exponent.
ExprPtr json_integer(const NumberBounds& bounds);
ExprPtr json_number(const NumberBounds& bounds);

}  // namespace stretto::grammar
