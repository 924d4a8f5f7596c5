// A regular part of a grammar as one deterministic automaton over bytes. After expr.h; grammar.h
// puts many together.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "stretto/server/grammar/budget.h"
#include "stretto/server/grammar/expr.h"

namespace stretto::grammar {

// From every state an accepting one can be reached.
struct Dfa {
  std::array<std::uint8_t, 256> class_of{};  // of a byte
  int num_classes = 1;
  std::vector<std::int32_t> next;     // [state][class]; -1: no text goes on so
  std::vector<std::uint8_t> accepts;  // [state]
  std::vector<std::uint8_t> goes_on;  // [state]: some byte may follow
  int start = -1;                     // -1: it matches nothing

  int num_states() const { return static_cast<int>(accepts.size()); }
  int step(int state, std::uint8_t byte) const {
    return next[static_cast<std::size_t>(state * num_classes + class_of[byte])];
  }
};

// GrammarError where it has more than `most_states`, or the budget is spent. InternalError for
// rules.
Dfa make_dfa(const Expr& expr, int most_states, Budget& budget);

}  // namespace stretto::grammar
