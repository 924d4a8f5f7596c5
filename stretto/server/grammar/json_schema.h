// JSON schemas as grammars: every text that the grammar allows is valid, whether or not it allows
// every valid text. Objects have their keys in the order of `properties`.
// docs/guide/serving.md lists the keywords.
#pragma once

#include "stretto/server/grammar/budget.h"
#include "stretto/server/grammar/expr.h"
#include "stretto/server/grammar/ordered_json.h"

namespace stretto::grammar {

struct SchemaOptions {
  bool is_compact = false;  // no space between tokens
};

// GrammarError naming the place in the schema and the keyword that is not supported.
Rules rules_of_schema(const OrderedJson& schema, const SchemaOptions& options, Budget& budget);

// The same into `rules`, for a grammar that has more than the JSON.
ExprPtr add_schema(Rules& rules, const OrderedJson& schema, const SchemaOptions& options,
                   Budget& budget);
// Any object.
OrderedJson any_object();

}  // namespace stretto::grammar
