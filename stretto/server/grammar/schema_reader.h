// A JSON schema, keyword by keyword: what it says of a place, with every keyword that
// json_schema.cc cannot honour refused by its name.
#pragma once

#include <initializer_list>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "stretto/server/grammar/budget.h"
#include "stretto/server/grammar/json_text.h"
#include "stretto/server/grammar/ordered_json.h"

namespace stretto::grammar {

// A part of a schema, and where it stands ("/properties/a"), for errors: the beginning of a long
// way.
struct SchemaPlace {
  const OrderedJson* schema = nullptr;
  std::string path;

  [[noreturn]] void fail(const std::string& what) const;
  // Of those that constrain.
  bool has_only(std::string_view keyword) const;
  // Keywords that constrain, beside one that has the word.
  void refuse_beside(const char* keyword, std::initializer_list<const char*> but) const;
  SchemaPlace in(const char* keyword) const;
  SchemaPlace in(const char* keyword, const std::string& key) const;
};

// Keys that no schema of a request has, since they are no UTF-8, and that SchemaJoiner makes:
// further schemas of a string, and names of properties that may not be there.
inline constexpr const char* kAlso =
    "\xFF"
    "also";
inline constexpr const char* kForbidden =
    "\xFF"
    "forbidden";

inline constexpr int kMostHops = 20;  // references that lead to references
inline constexpr std::size_t kMostBranches = 200;

// What copying JSON costs, about in bytes.
std::int64_t weight(const OrderedJson& json);

// Whether a keyword says nothing of what is valid.
bool is_note(std::string_view keyword);

class SchemaReader {
 public:
  SchemaReader(const OrderedJson& root, Budget& budget) : root_(root), budget_(budget) {}

  SchemaPlace root() const { return {&root_, ""}; }
  static void check_keywords(const SchemaPlace& at);

  // What a reference points at.
  SchemaPlace resolved(const SchemaPlace& at, const char* keyword) const;
  SchemaPlace followed(SchemaPlace at) const;

  std::vector<SchemaPlace> branches(const SchemaPlace& at, const char* keyword) const;
  // The properties by which at most one branch fits a value; none where their types do that.
  struct Apart {
    std::set<std::string> by = {};
    std::optional<std::pair<std::size_t, std::size_t>> alike = {};  // branches that both may fit
  };
  Apart told_apart_by(const std::vector<SchemaPlace>& branches) const;

  std::vector<std::string> types(const SchemaPlace& at) const;
  // Of const or enum, those that the types leave.
  std::vector<const OrderedJson*> values(const SchemaPlace& at) const;
  std::optional<int> count(const SchemaPlace& at, const char* keyword, int most) const;
  static NumberBounds bounds(const SchemaPlace& at);

  struct Member {
    std::string name;
    SchemaPlace place;
    bool is_required = false;
  };
  struct Pattern {
    std::string pattern;
    SchemaPlace place;
  };
  struct Object {
    std::vector<Member> members;
    std::vector<Pattern> patterns;          // of the names of further ones
    std::set<std::string> forbidden;        // names
    std::optional<SchemaPlace> additional;  // all others
    std::optional<SchemaPlace> names;       // what all names are
    int min = 0, max = -1;
  };
  Object object(const SchemaPlace& at, const std::set<std::string>& forced, int most) const;

  struct Array {
    std::vector<SchemaPlace> first;    // prefixItems
    std::optional<SchemaPlace> items;  // what may follow
    int min = 0, max = -1;
    bool is_unique = false;
  };
  Array array(const SchemaPlace& at, int most) const;

 private:
  std::optional<std::set<std::string>> kinds(const SchemaPlace& at, int depth) const;
  std::optional<std::set<std::string>> finite_values(const SchemaPlace& at) const;

  const OrderedJson& root_;
  Budget& budget_;
};

}  // namespace stretto::grammar
