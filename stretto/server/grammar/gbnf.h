// Grammars in GBNF, the form of llama.cpp: rules as `name ::= alternatives`, of which `root` is the
// whole text. Texts in quotes, characters in brackets, ., groups, |, *, +, ?, {m}, {m,}, {m,n}, and
// comments from # to the line's end.
#pragma once

#include <string_view>

#include "stretto/server/grammar/budget.h"
#include "stretto/server/grammar/expr.h"

namespace stretto::grammar {

// GrammarError with the byte at which it goes wrong.
Rules parse_gbnf(std::string_view source, Budget& budget);

}  // namespace stretto::grammar
