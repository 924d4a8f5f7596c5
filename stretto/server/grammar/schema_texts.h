// What a JSON schema says of texts: strings, and the names of an object's properties.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "stretto/server/grammar/budget.h"
#include "stretto/server/grammar/expr.h"
#include "stretto/server/grammar/schema_join.h"
#include "stretto/server/grammar/schema_reader.h"

namespace stretto::grammar {

// As in quotes, without them, with what must be escaped.
std::string unquoted(std::string_view text);
// Those of the values that are texts, so written.
ExprPtr texts_of(const std::vector<const OrderedJson*>& values);

class SchemaTexts {
 public:
  SchemaTexts(const SchemaReader& reader, SchemaJoiner& joiner, Budget& budget)
      : reader_(reader), joiner_(joiner), budget_(budget) {}

  // Between the quotes. `in_any_way`: characters may be escaped as they like where nothing counts
  // them, else in the one way in which writers escape them.
  ExprPtr content(const SchemaPlace& at, bool in_any_way);
  // The text of names that a schema allows (propertyNames).
  ExprPtr names(const SchemaPlace& at) { return names(at, 0); }
  ExprPtr pattern(const std::string& pattern, const SchemaPlace& at);
  bool fits(const ExprPtr& content, const std::string& name);

 private:
  ExprPtr names(const SchemaPlace& given, int depth);
  ExprPtr expression(const SchemaPlace& at, const char* name);

  const SchemaReader& reader_;
  SchemaJoiner& joiner_;
  Budget& budget_;
};

}  // namespace stretto::grammar
