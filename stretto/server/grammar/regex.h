// Regular expressions of requests: the subset of ECMA 262 and Python's re that says which texts
// match, without look-around, back references and \b. Makes an Expr.
#pragma once

#include <functional>
#include <string_view>

#include "stretto/server/grammar/budget.h"
#include "stretto/server/grammar/expr.h"

namespace stretto::grammar {

struct RegexOptions {
  // True: the whole text has to match; ^ and $ may stand at the ends. False: a part of it has to,
  // as in a JSON schema's pattern.
  bool matches_whole = true;
  // How a character of a set is written: in UTF-8, or as in a JSON string.
  std::function<ExprPtr(const CodePoints&)> written = utf8;
};

// GrammarError saying what is not supported, and at which byte.
ExprPtr parse_regex(std::string_view pattern, const RegexOptions& options, Budget& budget);

}  // namespace stretto::grammar
