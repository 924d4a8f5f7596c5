// Filters, in two files: those of texts and numbers, and those of lists and dicts.
#pragma once

#include <string>

#include "stretto/server/jinja/evaluator.h"

namespace stretto::jinja {

using Filter = Value (*)(Evaluator&, const Value&, Arguments&);

struct NamedFilter {
  const char* name;
  Filter call;
};

// Null where there is none of the name.
Filter find_text_filter(const std::string& name);
Filter find_sequence_filter(const std::string& name);

}  // namespace stretto::jinja
