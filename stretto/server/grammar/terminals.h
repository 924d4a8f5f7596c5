// Finds the regular parts of rules: each becomes one terminal, as large as is reasonable, so that
// the automaton has few ways to follow. After gbnf.h, before grammar.h's Network.
#pragma once

#include "stretto/server/grammar/vocabulary.h"

namespace stretto::grammar {

// The same language. Rules that are nowhere asked for any more stay.
Rules with_terminals(const Rules& rules, const Vocabulary& vocabulary, Budget& budget);

}  // namespace stretto::grammar
