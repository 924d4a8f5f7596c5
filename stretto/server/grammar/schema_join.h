// Schemas put together: what several say at once becomes one schema without `allOf`, and keywords
// that are short for others become those. Comes after schema_reader.h, which reads what is made
// here as it reads what a request has.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "stretto/server/grammar/budget.h"
#include "stretto/server/grammar/ordered_json.h"
#include "stretto/server/grammar/schema_reader.h"

namespace stretto::grammar {

// Keeps the schemas that it makes as long as it stands. GrammarError where the parts say what one
// schema cannot.
class SchemaJoiner {
 public:
  SchemaJoiner(const SchemaReader& reader, Budget& budget) : reader_(reader), budget_(budget) {}

  // What the parts of allOf, and what stands beside it, say together.
  SchemaPlace joined(const SchemaPlace& at);
  SchemaPlace both(const SchemaPlace& a, const SchemaPlace& b);
  SchemaPlace without(const SchemaPlace& at, const char* keyword);
  // Keywords that are short for others (if, dependentRequired, not, lists as items) as those.
  SchemaPlace written_out(const SchemaPlace& at);
  // Each of `whole`, which has what stands beside the branches, where none of the other branches
  // fits; nothing where no schema says so.
  std::optional<std::vector<SchemaPlace>> exclusive(const std::vector<SchemaPlace>& branches,
                                                    std::vector<SchemaPlace> whole);
  // Fits no value that the schema fits; nothing where no schema says so.
  std::optional<OrderedJson> negated(const SchemaPlace& at) const;

 private:
  void join(const SchemaPlace& part, OrderedJson& out, int depth);
  void join_key(const SchemaPlace& part, const std::string& key, OrderedJson& out);
  SchemaPlace made(OrderedJson schema, std::string path);

  const SchemaReader& reader_;
  Budget& budget_;
  std::vector<std::unique_ptr<OrderedJson>> made_;
};

}  // namespace stretto::grammar
