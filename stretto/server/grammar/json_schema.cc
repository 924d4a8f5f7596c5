#include "stretto/server/grammar/json_schema.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "stretto/base/json_fields.h"
#include "stretto/server/grammar/json_text.h"
#include "stretto/server/grammar/object_rules.h"
#include "stretto/server/grammar/schema_join.h"
#include "stretto/server/grammar/schema_reader.h"
#include "stretto/server/grammar/schema_texts.h"

namespace stretto::grammar {
namespace {

constexpr int kMostSchemas = 64;
constexpr int kMostItems = 10'000;       // of minItems and maxItems
constexpr std::size_t kMostKeys = 2000;  // of one object
constexpr int kMostCounted = 1000;       // of minProperties and maxProperties
constexpr std::size_t kMostUnique = 8;   // different items of a list in which each comes once

const OrderedJson& nothing() {
  static const OrderedJson value = false;
  return value;
}

class Compiler {
 public:
  Compiler(Rules& rules, const OrderedJson& root, const SchemaOptions& options, Budget& budget)
      : rules_(rules),
        reader_(root, budget),
        joiner_(reader_, budget),
        texts_(reader_, joiner_, budget),
        budget_(budget),
        space_(json_space(options.is_compact)) {}

  ExprPtr whole() {
    ExprPtr out = of(reader_.root(), 0);
    // What is referred to, which may refer to more.
    for (std::size_t i = 0; i < pending_.size(); ++i) {
      const auto [index, target, forced] = pending_[i];
      ExprPtr body = of(target, 0, forced);
      rules_.bodies[static_cast<std::size_t>(index)] = std::move(body);
    }
    return out;
  }

 private:
  // Properties that a branch has to have so that no other branch fits (oneOf).
  using Names = std::set<std::string>;

  ExprPtr of(const SchemaPlace& given, int depth, const Names& forced = {}) {
    budget_.make_parts(2);
    if (depth > kMostSchemas) given.fail("nests too deeply");
    if (given.schema->is_boolean()) return given.schema->get<bool>() ? any_value() : choice({});
    if (!given.schema->is_object()) given.fail("need an object, true or false");
    budget_.spend(static_cast<std::int64_t>(given.schema->size()));
    SchemaReader::check_keywords(given);
    const SchemaPlace at = joiner_.written_out(given);
    const OrderedJson& schema = *at.schema;
    if (schema.contains("allOf")) return of(joiner_.joined(at), depth + 1, forced);
    if (schema.contains("$ref")) {
      if (at.has_only("$ref")) return reference(reader_.resolved(at, "$ref"), forced);
      return of(joiner_.joined(at), depth + 1, forced);
    }
    for (const char* name : {"anyOf", "oneOf"}) {
      if (schema.contains(name)) return any_of(at, name, depth, forced);
    }
    if (schema.contains("not")) return but(at, depth, forced);
    if (schema.contains("const") || schema.contains("enum")) return values(at);
    const std::vector<std::string> types = reader_.types(at);
    if (types.empty()) return any_value();
    std::vector<ExprPtr> out;
    for (const std::string& type : types) out.push_back(of_type(type, at, depth, forced));
    return choice(std::move(out));
  }

  int new_rule() {
    budget_.make_rule(rules_.bodies.size());
    return rules_.add(nullptr);
  }

  // One rule for each place that is referred to, which may lead back to itself.
  ExprPtr reference(const SchemaPlace& target, const Names& forced) {
    budget_.spend(2 + 10 * static_cast<std::int64_t>(forced.size()));
    auto [at, is_new] = rule_of_.try_emplace({target.schema, forced}, -1);
    if (is_new) {
      at->second = new_rule();
      pending_.push_back({at->second, target, forced});
    }
    return rule(at->second);
  }

  // What stands beside the branches holds in each.
  ExprPtr any_of(const SchemaPlace& at, const char* name, int depth, const Names& forced) {
    const std::vector<SchemaPlace> given = reader_.branches(at, name);
    std::vector<SchemaPlace> branches = given;
    if (!at.has_only(name)) {
      const SchemaPlace rest = joiner_.without(at, name);
      for (SchemaPlace& branch : branches) branch = joiner_.both(rest, branch);
    }
    Names all = forced;
    if (std::string_view(name) == "oneOf") {
      SchemaReader::Apart apart = reader_.told_apart_by(branches);
      if (apart.alike) {
        const auto [i, j] = *apart.alike;
        auto exclusive = joiner_.exclusive(given, branches);
        if (!exclusive) {
          at.fail(
              fmt::format("oneOf: the branches {} and {} may both fit a value, which is not "
                          "supported; use anyOf, or a property with a const in each",
                          i, j));
        }
        branches = std::move(*exclusive);
      }
      all.merge(apart.by);
    }
    std::vector<ExprPtr> out;
    for (const SchemaPlace& branch : branches) out.push_back(of(branch, depth + 1, all));
    return choice(std::move(out));
  }

  // `not` with values, or with what strings are.
  ExprPtr but(const SchemaPlace& at, int depth, const Names& forced) {
    const SchemaPlace taken = reader_.followed(at.in("not")), rest = joiner_.without(at, "not");
    const bool is_of_values = taken.schema->contains("const") || taken.schema->contains("enum");
    const std::vector<std::string> taken_types = reader_.types(taken);
    if (!is_of_values && taken_types != std::vector<std::string>{"string"}) {
      taken.fail("'not' is supported of values, types, strings, and names of properties");
    }
    std::vector<const OrderedJson*> values;
    if (is_of_values) values = reader_.values(taken);
    if (rest.schema->contains("const") || rest.schema->contains("enum")) {
      if (!is_of_values) at.fail("'enum' beside such a 'not' is not supported");
      std::vector<const OrderedJson*> left = reader_.values(rest);
      std::erase_if(left, [&](const OrderedJson* value) {
        budget_.spend(1 + static_cast<std::int64_t>(values.size()) / 4 + weight(*value) / 4);
        return std::any_of(values.begin(), values.end(),
                           [&](const OrderedJson* other) { return *value == *other; });
      });
      return of_values(left);
    }
    std::vector<std::string> types = reader_.types(rest);
    if (types.empty()) types = {"object", "array", "string", "number", "boolean", "null"};
    // Strings without a type beside them leave out everything else, too.
    if (!is_of_values && !taken.schema->contains("type")) {
      std::erase_if(types, [](const std::string& type) { return type != "string"; });
    }
    std::vector<ExprPtr> out;
    for (const std::string& type : types) {
      if (type == "string") {
        ExprPtr all = texts_.content(rest, false);
        ExprPtr none = is_of_values ? texts_of(values) : texts_.content(taken, false);
        out.push_back(json_string(but_not(std::move(all), std::move(none))));
        continue;
      }
      const bool is_free = std::none_of(values.begin(), values.end(), [&](const auto* value) {
        return (type == "object" && value->is_object()) || (type == "array" && value->is_array()) ||
               ((type == "number" || type == "integer") && value->is_number());
      });
      if (is_free && type != "boolean" && type != "null") {
        out.push_back(of_type(type, rest, depth, forced));
        continue;
      }
      if (type == "integer") {
        out.push_back(terminal(but_not(of_type(type, rest, depth, forced), integers(values))));
        continue;
      }
      if (type != "boolean" && type != "null") {
        taken.fail(fmt::format("'not' with a value of type {} is not supported", type));
      }
      static const OrderedJson kAll[] = {true, false, nullptr};
      std::vector<const OrderedJson*> left;
      for (const OrderedJson& one : kAll) {
        const bool is_taken = std::any_of(values.begin(), values.end(),
                                          [&](const auto* value) { return *value == one; });
        if (one.is_boolean() == (type == "boolean") && !is_taken) left.push_back(&one);
      }
      out.push_back(of_values(left));
    }
    return choice(std::move(out));
  }

  ExprPtr integers(const std::vector<const OrderedJson*>& values) {
    std::vector<ExprPtr> out;
    for (const OrderedJson* value : values) {
      budget_.make_parts(2);
      if (!value->is_number()) continue;
      const Decimal number = Decimal::of(Json(*value));
      if (!number.is_whole()) continue;
      out.push_back(text((number.is_negative ? "-" : "") + number.whole));
      if (number.whole == "0") out.push_back(text("-0"));
    }
    return choice(std::move(out));
  }

  ExprPtr values(const SchemaPlace& at) { return of_values(reader_.values(at)); }

  ExprPtr of_values(const std::vector<const OrderedJson*>& values) {
    std::vector<ExprPtr> plain, structured;
    for (const OrderedJson* value : values) {
      budget_.make_parts(1);
      budget_.spend(weight(*value) / 8);
      if (value->is_structured()) {
        structured.push_back(written(*value));
      } else {
        plain.push_back(text(value->dump()));
      }
    }
    if (!plain.empty()) structured.push_back(terminal(choice(std::move(plain))));
    return choice(std::move(structured));
  }

  ExprPtr written(const OrderedJson& value) {
    budget_.make_parts(4 + 2 * value.size());
    if (!value.is_structured()) return terminal(text(value.dump()));
    const bool is_object = value.is_object();
    if (value.empty()) return terminal(text(is_object ? "{}" : "[]"));
    std::vector<ExprPtr> parts = {mark(is_object ? "{" : "["), space_};
    bool is_first = true;
    for (const auto& [key, item] : value.items()) {
      if (!std::exchange(is_first, false)) parts.insert(parts.end(), {mark(","), space_});
      if (is_object) parts.insert(parts.end(), {mark(json_quoted(key) + ":"), space_});
      parts.push_back(written(item));
    }
    parts.insert(parts.end(), {space_, mark(is_object ? "}" : "]")});
    return sequence(std::move(parts));
  }

  static ExprPtr mark(std::string_view bytes) { return terminal(text(bytes)); }

  ExprPtr of_type(const std::string& type, const SchemaPlace& at, int depth, const Names& forced) {
    if (type == "object") return object(at, depth, forced);
    if (type == "array") return array(at, depth);
    if (type == "string") return string(at);
    if (type == "integer" || type == "number") {
      const NumberBounds bounds = SchemaReader::bounds(at);
      budget_.make_parts(bounds.any() || bounds.multiple ? 300 : 20);
      return type == "integer" ? json_integer(bounds) : json_number(bounds);
    }
    if (type == "boolean") return terminal(choice({text("true"), text("false")}));
    return mark("null");
  }

  ExprPtr any_value() {
    if (any_value_ < 0) {
      any_value_ = new_rule();
      const int object = new_rule(), array = new_rule();
      const ExprPtr value = rule(any_value_), comma = sequence({mark(","), space_});
      const ExprPtr member = sequence({any_key(), mark(":"), space_, value});
      rules_.bodies[static_cast<std::size_t>(object)] = list("{", member, comma, "}");
      rules_.bodies[static_cast<std::size_t>(array)] = list("[", value, comma, "]");
      rules_.bodies[static_cast<std::size_t>(any_value_)] =
          choice({terminal(choice({text("true"), text("false"), text("null")})), json_number({}),
                  json_string(repeat(json_any_character(), 0, -1)), rule(object), rule(array)});
    }
    return rule(any_value_);
  }

  ExprPtr list(const char* begin, const ExprPtr& item, const ExprPtr& comma, const char* end) {
    return sequence({mark(begin), space_,
                     optional(sequence({item, repeat(sequence({comma, item}), 0, -1), space_})),
                     mark(end)});
  }

  // Any key, as it may be written.
  ExprPtr any_key() { return json_string(repeat(json_any_character(), 0, -1)); }

  // What members of an object may be, beside those that are listed: a key's text, a value.
  struct Further {
    ExprPtr key, value;
  };

  // Finds what the listed ones are, too, by their names.
  std::vector<Further> further(const SchemaPlace& at, SchemaReader::Object& its, int depth) {
    const bool is_plain = its.patterns.empty() && !its.names;
    std::optional<ExprPtr> names;
    if (its.names) names = texts_.names(*its.names);
    std::vector<ExprPtr> patterns;
    for (const auto& one : its.patterns) {
      patterns.push_back(texts_.pattern(one.pattern, {nullptr, at.path + "/patternProperties"}));
    }
    std::vector<ExprPtr> taken;
    for (const std::string& name : its.forbidden) taken.push_back(text(unquoted(name)));
    for (auto& member : its.members) {
      taken.push_back(text(unquoted(member.name)));
      if (its.forbidden.contains(member.name) || (names && !texts_.fits(*names, member.name))) {
        member.place = {&nothing(), at.path};
        continue;
      }
      for (std::size_t i = 0; i < patterns.size(); ++i) {
        budget_.spend(10);
        if (!texts_.fits(patterns[i], member.name)) continue;
        const SchemaPlace& also = its.patterns[i].place;
        member.place = member.place.schema == nullptr ? also : joiner_.both(member.place, also);
      }
      if (member.place.schema != nullptr) continue;
      member.place = its.additional.value_or(SchemaPlace{&nothing(), at.path});
    }
    const bool is_free = is_plain && taken.empty();
    const ExprPtr any = repeat(json_plain_character(), 0, -1);
    std::vector<Further> out;
    auto add = [&](ExprPtr content, const SchemaPlace& place) {
      budget_.make_parts(10 + taken.size() / 8);
      if (!taken.empty()) content = but_not(std::move(content), choice(taken));
      if (names) content = both(std::move(content), *names);
      out.push_back({is_free ? any_key() : json_string(std::move(content)), of(place, depth + 1)});
    };
    for (std::size_t i = 0; i < patterns.size(); ++i) {
      // A name of several patterns would have to be of all their schemas: it does not come.
      std::vector<ExprPtr> others;
      for (std::size_t j = 0; j < patterns.size(); ++j) {
        budget_.spend(5);
        if (j != i && *its.patterns[i].place.schema != *its.patterns[j].place.schema) {
          others.push_back(patterns[j]);
        }
      }
      add(others.empty() ? patterns[i] : but_not(patterns[i], choice(std::move(others))),
          its.patterns[i].place);
    }
    if (its.additional) {
      add(patterns.empty() ? any : but_not(any, choice(patterns)), *its.additional);
    }
    return out;
  }

  // "{", then members in order, then further ones; a rule for each place and count in between.
  ExprPtr object(const SchemaPlace& at, int depth, const Names& forced) {
    SchemaReader::Object its = reader_.object(at, forced, kMostCounted);
    if (its.members.size() > kMostKeys) at.fail("has too many properties");
    ObjectRules made(rules_, budget_, space_, its.min, its.max);
    for (const Further& one : further(at, its, depth)) {
      made.add_further(sequence({one.key, mark(":"), space_, one.value}));
    }
    for (const auto& member : its.members) {
      budget_.spend();
      made.add_member(
          sequence({mark(json_quoted(member.name) + ":"), space_, of(member.place, depth + 1)}),
          member.is_required);
    }
    if (its.min > made.most_names() && made.has_further()) {
      at.fail(
          fmt::format("minProperties: more than {} is not supported here, since further "
                      "properties may have the same name",
                      made.most_names()));
    }
    return made.whole();
  }

  ExprPtr array(const SchemaPlace& at, int depth) {
    const SchemaReader::Array its = reader_.array(at, kMostItems);
    if (its.max >= 0 && its.max < its.min) return choice({});
    if (its.is_unique && (its.max < 0 || its.max > 1)) return unique_items(at, its);
    const ExprPtr close = sequence({space_, mark("]")}), comma = sequence({mark(","), space_});
    const int num_first = static_cast<int>(its.first.size());
    std::optional<ExprPtr> item;
    if (its.items) {
      item = of(*its.items, depth + 1);
      if (item->get()->kind != Expr::Kind::kTerminal) item = rule(rules_.add(*item));
    }
    // From the last of the first ones backwards: what follows when so many are there.
    auto rest = [&](int there) -> ExprPtr {
      const int min = std::max(its.min - there, 0), max = its.max < 0 ? -1 : its.max - there;
      if (max == 0 || (!item && min == 0)) return text("");
      if (!item) return choice({});
      if (there > 0) return repeat(sequence({comma, *item}), min, max);
      ExprPtr some = sequence(
          {*item, repeat(sequence({comma, *item}), std::max(min - 1, 0), max < 0 ? -1 : max - 1)});
      return min > 0 ? some : optional(std::move(some));
    };
    ExprPtr after = rest(num_first);
    for (int i = num_first; i-- > 0;) {
      if (its.max >= 0 && i >= its.max) {
        after = text("");
        continue;
      }
      std::vector<ExprPtr> parts;
      if (i > 0) parts.push_back(comma);
      parts.push_back(of(its.first[static_cast<std::size_t>(i)], depth + 1));
      parts.push_back(std::move(after));
      after = sequence(std::move(parts));
      if (i >= its.min) after = optional(std::move(after));
    }
    return sequence({mark("["), space_, std::move(after), close});
  }

  // Each of a few values once, in any order: a rule for each set of those that are left.
  ExprPtr unique_items(const SchemaPlace& at, const SchemaReader::Array& its) {
    std::vector<const OrderedJson*> values;
    const SchemaPlace of = its.items ? reader_.followed(*its.items) : at;
    static const OrderedJson kBooleans[] = {true, false};
    if (its.items && of.schema->is_object()) {
      SchemaReader::check_keywords(of);
      if (of.schema->contains("const") || of.schema->contains("enum")) {
        for (const OrderedJson* value : reader_.values(of)) {
          budget_.spend(1 + weight(*value) / 4);
          if (values.size() > kMostUnique) break;
          const bool is_there = std::any_of(values.begin(), values.end(),
                                            [&](const auto* other) { return *other == *value; });
          if (!is_there) values.push_back(value);
        }
      } else if (of.schema->contains("type") && (*of.schema)["type"] == "boolean") {
        values = {&kBooleans[0], &kBooleans[1]};
      }
    }
    if (values.empty() || values.size() > kMostUnique || !its.first.empty()) {
      at.fail(fmt::format("uniqueItems is supported where items are of an enum of up to {} values",
                          kMostUnique));
    }
    const std::size_t count = values.size();
    std::vector<ExprPtr> items;
    for (const OrderedJson* value : values) items.push_back(written(*value));
    const ExprPtr close = sequence({space_, mark("]")}), comma = sequence({mark(","), space_});
    std::vector<int> after;  // by the set of those that were
    for (std::size_t set = 0; set < std::size_t{1} << count; ++set) after.push_back(new_rule());
    for (std::size_t set = 0; set < after.size(); ++set) {
      budget_.spend(static_cast<std::int64_t>(count));
      const int there = std::popcount(set);
      std::vector<ExprPtr> out;
      if (there >= its.min) out.push_back(there == 0 ? mark("]") : close);
      for (std::size_t i = 0; i < count && (its.max < 0 || there < its.max); ++i) {
        if ((set >> i & 1) != 0) continue;
        std::vector<ExprPtr> parts = {items[i], rule(after[set | std::size_t{1} << i])};
        if (there > 0) parts.insert(parts.begin(), comma);
        out.push_back(sequence(std::move(parts)));
      }
      rules_.bodies[static_cast<std::size_t>(after[set])] = choice(std::move(out));
    }
    return sequence({mark("["), space_, rule(after[0])});
  }

  ExprPtr string(const SchemaPlace& at) { return json_string(texts_.content(at, true)); }

  Rules& rules_;
  SchemaReader reader_;
  SchemaJoiner joiner_;
  SchemaTexts texts_;
  Budget& budget_;
  ExprPtr space_;
  std::map<std::pair<const OrderedJson*, Names>, int> rule_of_;
  struct Pending {
    int index;
    SchemaPlace target;
    Names forced;
  };
  std::vector<Pending> pending_;
  int any_value_ = -1;
};

}  // namespace

ExprPtr add_schema(Rules& rules, const OrderedJson& schema, const SchemaOptions& options,
                   Budget& budget) {
  return Compiler(rules, schema, options, budget).whole();
}

Rules rules_of_schema(const OrderedJson& schema, const SchemaOptions& options, Budget& budget) {
  Rules rules;
  rules.root = rules.add(nullptr);
  ExprPtr whole = add_schema(rules, schema, options, budget);
  rules.bodies[static_cast<std::size_t>(rules.root)] = std::move(whole);
  return rules;
}

OrderedJson any_object() { return {{"type", "object"}}; }

}  // namespace stretto::grammar
