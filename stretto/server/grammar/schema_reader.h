// A JSON schema, keyword by keyword: what it says of a place, with every keyword that
// json_schema.cc cannot honour refused by its name.
#pragma once

#include <initializer_list>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "stretto/server/grammar/budget.h"
#include "stretto/server/grammar/json_text.h"
#include "stretto/server/grammar/ordered_json.h"

namespace stretto::grammar {

// A part of a schema, and where it stands ("/properties/a"), for errors and references.
struct SchemaPlace {
  const OrderedJson* schema = nullptr;
  std::string path;

  [[noreturn]] void fail(const std::string& what) const;
  // Keywords that constrain, beside one that has the word.
  void refuse_beside(const char* keyword, std::initializer_list<const char*> but) const;
  SchemaPlace in(const char* keyword) const;
  SchemaPlace in(const char* keyword, const std::string& key) const;
};

class SchemaReader {
 public:
  explicit SchemaReader(const OrderedJson& root) : root_(root) {}

  SchemaPlace root() const { return {&root_, ""}; }
  static void check_keywords(const SchemaPlace& at);

  // What a reference points at.
  SchemaPlace resolved(const SchemaPlace& at, const char* keyword) const;
  // What the parts of allOf, and what stands beside it, say together.
  SchemaPlace joined(const SchemaPlace& at);
  std::vector<SchemaPlace> branches(const SchemaPlace& at, const char* keyword) const;
  // The properties by which at most one branch fits a value; none where their types do that.
  std::set<std::string> told_apart_by(const SchemaPlace& at,
                                      const std::vector<SchemaPlace>& branches) const;

  static std::vector<std::string> types(const SchemaPlace& at);
  // Of const or enum, those that the types leave.
  static std::vector<const OrderedJson*> values(const SchemaPlace& at);
  static std::optional<int> count(const SchemaPlace& at, const char* keyword, int most);
  static NumberBounds bounds(const SchemaPlace& at);

  struct Member {
    std::string name;
    SchemaPlace place;
    bool is_required = false;
  };
  struct Object {
    std::vector<Member> members;
    std::optional<SchemaPlace> additional;
  };
  Object object(const SchemaPlace& at, const std::set<std::string>& forced) const;

  struct Array {
    std::vector<SchemaPlace> first;    // prefixItems
    std::optional<SchemaPlace> items;  // what may follow
    int min = 0, max = -1;
  };
  Array array(const SchemaPlace& at, int most) const;

 private:
  SchemaPlace followed(SchemaPlace at) const;
  void join(const SchemaPlace& part, OrderedJson& out, int depth) const;
  std::optional<std::set<std::string>> kinds(const SchemaPlace& at, int depth) const;
  std::optional<std::set<std::string>> finite_values(const SchemaPlace& at) const;

  const OrderedJson& root_;
  std::vector<std::unique_ptr<OrderedJson>> made_;  // of allOf
};

}  // namespace stretto::grammar
