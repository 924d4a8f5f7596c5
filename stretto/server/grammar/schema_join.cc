#include "stretto/server/grammar/schema_join.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <string_view>
#include <utility>

#include "stretto/base/printable.h"

namespace stretto::grammar {
namespace {

constexpr std::int64_t kMostMultiple = 1'000'000;

bool is_anything(const OrderedJson& schema) {
  return schema == true || schema == OrderedJson::object();
}

OrderedJson all_of(const OrderedJson& a, const OrderedJson& b, Budget& budget) {
  budget.spend(weight(a) + weight(b));
  if (a == b || is_anything(b)) return a;
  if (is_anything(a)) return b;
  if (a == false || b == false) return false;
  return {{"allOf", OrderedJson::array({a, b})}};
}

bool is_one_of(const OrderedJson& list, const OrderedJson& value) {
  return std::find(list.begin(), list.end(), value) != list.end();
}

OrderedJson list_of(const OrderedJson& value) {
  return value.is_array() ? value : OrderedJson::array({value});
}

OrderedJson common_types(const OrderedJson& a, const OrderedJson& b, Budget& budget) {
  budget.spend(weight(a) + weight(b));
  const OrderedJson in_a = list_of(a), in_b = list_of(b);
  const std::int64_t each = weight(in_b) / 4;
  OrderedJson out = OrderedJson::array();
  for (const OrderedJson& type : in_a) {
    budget.spend(each);
    const bool is_in_both =
        is_one_of(in_b, type) || (type == "integer" && is_one_of(in_b, "number"));
    if (is_in_both) out.push_back(type);
  }
  const bool narrows = is_one_of(in_b, "integer") && is_one_of(in_a, "number");
  if (narrows && !is_one_of(out, "integer") && !is_one_of(out, "number")) out.push_back("integer");
  return out;
}

// What an object's keywords say of names that they do not list.
const OrderedJson& others(const OrderedJson& schema) {
  static const OrderedJson anything = true;
  return schema.contains("additionalProperties") ? schema["additionalProperties"] : anything;
}

bool has_object(const OrderedJson& schema, const char* keyword) {
  return schema.contains(keyword) && schema[keyword].is_object() && !schema[keyword].empty();
}

// The keywords `properties`, `patternProperties` and `additionalProperties` of both.
void join_properties(const SchemaPlace& part, OrderedJson& out, Budget& budget) {
  static constexpr std::array kNames = {"properties", "patternProperties"};
  const OrderedJson& other = *part.schema;
  const OrderedJson its_others = others(other), own_others = others(out);
  if ((!is_anything(its_others) && has_object(other, "patternProperties")) ||
      (!is_anything(own_others) && has_object(out, "patternProperties"))) {
    part.fail(
        "'additionalProperties' beside 'patternProperties' in a part of 'allOf' is not supported");
  }
  for (const char* keyword : kNames) {
    if (!has_object(out, keyword) && !has_object(other, keyword)) continue;
    OrderedJson made = OrderedJson::object();
    if (out.contains(keyword)) {
      for (const auto& [name, schema] : out[keyword].items()) {
        budget.spend(other.contains(keyword) ? static_cast<std::int64_t>(other[keyword].size())
                                             : 1);
        const bool in_both = other.contains(keyword) && other[keyword].contains(name);
        made[name] = all_of(schema, in_both ? other[keyword][name] : its_others, budget);
      }
    }
    if (other.contains(keyword)) {
      if (!other[keyword].is_object()) part.fail(fmt::format("{}: need an object", keyword));
      for (const auto& [name, schema] : other[keyword].items()) {
        budget.spend(static_cast<std::int64_t>(made.size()));
        if (!made.contains(name)) made[name] = all_of(schema, own_others, budget);
      }
    }
    out[keyword] = std::move(made);
  }
  if (other.contains("additionalProperties") || out.contains("additionalProperties")) {
    out["additionalProperties"] = all_of(own_others, its_others, budget);
  }
}

void join_items(const OrderedJson& other, OrderedJson& out, Budget& budget) {
  static const OrderedJson anything = true;
  auto first = [](const OrderedJson& schema) {
    return schema.contains("prefixItems") && schema["prefixItems"].is_array()
               ? schema["prefixItems"]
               : OrderedJson::array();
  };
  auto rest = [](const OrderedJson& schema) -> const OrderedJson& {
    return schema.contains("items") ? schema["items"] : anything;
  };
  const OrderedJson in_a = first(out), in_b = first(other);
  OrderedJson made = OrderedJson::array();
  for (std::size_t i = 0; i < std::max(in_a.size(), in_b.size()); ++i) {
    made.push_back(all_of(i < in_a.size() ? in_a[i] : rest(out),
                          i < in_b.size() ? in_b[i] : rest(other), budget));
  }
  const bool has_items = out.contains("items") || other.contains("items");
  OrderedJson joined = all_of(rest(out), rest(other), budget);
  if (!made.empty()) out["prefixItems"] = std::move(made);
  if (has_items) out["items"] = std::move(joined);
}

// Where both say how many or how much, the narrower; false where the keyword is none of those.
bool join_bound(const std::string& key, const OrderedJson& value, OrderedJson& out) {
  static constexpr std::array kLeast = {"minimum", "exclusiveMinimum", "minLength", "minItems",
                                        "minProperties"};
  static constexpr std::array kMost = {"maximum", "exclusiveMaximum", "maxLength", "maxItems",
                                       "maxProperties"};
  const bool is_least = std::find(kLeast.begin(), kLeast.end(), key) != kLeast.end();
  const bool is_most = std::find(kMost.begin(), kMost.end(), key) != kMost.end();
  if ((!is_least && !is_most) || !value.is_number() || !out[key].is_number()) return false;
  if (is_least ? value > out[key] : value < out[key]) out[key] = value;
  return true;
}

}  // namespace

// Of two that both say something of `key`.
void SchemaJoiner::join_key(const SchemaPlace& part, const std::string& key, OrderedJson& out) {
  const OrderedJson& value = part.schema->at(key);
  if (out[key] == value || join_bound(key, value, out)) return;
  if (key == "type") {
    out[key] = common_types(out[key], value, budget_);
    if (out[key].empty()) out["enum"] = OrderedJson::array();
  } else if (key == "required" && value.is_array() && out[key].is_array()) {
    for (const OrderedJson& name : value) out[key].push_back(name);
  } else if (key == "enum" && value.is_array() && out[key].is_array()) {
    OrderedJson both = OrderedJson::array();
    const std::int64_t each = weight(value) / 4;
    for (const OrderedJson& one : out[key]) {
      budget_.spend(each);
      if (is_one_of(value, one)) both.push_back(one);
    }
    out[key] = std::move(both);
  } else if (key == "const") {
    out["enum"] = OrderedJson::array();
  } else if (key == "uniqueItems") {
    out[key] = true;
  } else if (key == "pattern" || key == "format") {
    out[kAlso].push_back({{key, value}});
  } else if (key == kAlso || key == kForbidden) {
    for (const OrderedJson& one : value) out[key].push_back(one);
  } else if (key == "not") {
    out[key] = {{"anyOf", OrderedJson::array({out[key], value})}};
  } else if (key == "propertyNames") {
    out[key] = all_of(out[key], value, budget_);
  } else if (key == "anyOf" && value.is_array() && out[key].is_array()) {
    OrderedJson pairs = OrderedJson::array();
    for (const OrderedJson& a : out[key]) {
      for (const OrderedJson& b : value) pairs.push_back(all_of(a, b, budget_));
      if (pairs.size() > kMostBranches) part.fail("anyOf: too many branches together");
    }
    out[key] = std::move(pairs);
  } else if (key == "multipleOf" && value.is_number_integer() && out[key].is_number_integer() &&
             value > 0 && out[key] > 0 && value <= kMostMultiple && out[key] <= kMostMultiple) {
    out[key] = std::lcm(value.get<std::int64_t>(), out[key].get<std::int64_t>());
  } else {
    part.fail(fmt::format("allOf: two parts have '{}'", printable(key, 40)));
  }
}

void SchemaJoiner::join(const SchemaPlace& given, OrderedJson& out, int depth) {
  if (depth > kMostHops) given.fail("allOf nests too deeply");
  if (given.schema->is_boolean()) {
    if (!given.schema->get<bool>()) out["enum"] = OrderedJson::array();
    return;
  }
  if (!given.schema->is_object()) given.fail("need an object");
  SchemaReader::check_keywords(given);
  budget_.spend(weight(*given.schema));
  const SchemaPlace part = written_out(given);
  static constexpr std::array kOfObjects = {"properties", "patternProperties",
                                            "additionalProperties"};
  auto has_any = [&](const auto& keywords) {
    return std::any_of(keywords.begin(), keywords.end(),
                       [&](const char* key) { return part.schema->contains(key); });
  };
  if (has_any(kOfObjects)) join_properties(part, out, budget_);
  if (has_any(std::array{"items", "prefixItems"})) join_items(*part.schema, out, budget_);
  for (const auto& [key, value] : part.schema->items()) {
    const bool is_joined = key == "items" || key == "prefixItems" ||
                           std::find(kOfObjects.begin(), kOfObjects.end(), key) != kOfObjects.end();
    if (is_joined || is_note(key)) continue;
    if (key == "$ref") {
      join(reader_.resolved(part, "$ref"), out, depth + 1);
    } else if (key == "allOf") {
      for (const SchemaPlace& inner : reader_.branches(part, "allOf")) join(inner, out, depth + 1);
    } else if (!out.contains(key)) {
      out[key] = value;
    } else {
      join_key(part, key, out);
    }
  }
}

SchemaPlace SchemaJoiner::made(OrderedJson schema, std::string path) {
  budget_.spend(weight(schema));
  made_.push_back(std::make_unique<OrderedJson>(std::move(schema)));
  return {made_.back().get(), std::move(path)};
}

SchemaPlace SchemaJoiner::joined(const SchemaPlace& at) {
  OrderedJson out = OrderedJson::object();
  join(at, out, 0);
  return made(std::move(out), at.path);
}

SchemaPlace SchemaJoiner::both(const SchemaPlace& a, const SchemaPlace& b) {
  OrderedJson out = OrderedJson::object();
  join(a, out, 0);
  join(b, out, 0);
  return made(std::move(out), b.path);
}

SchemaPlace SchemaJoiner::without(const SchemaPlace& at, const char* keyword) {
  budget_.spend(weight(*at.schema));
  OrderedJson out = *at.schema;
  out.erase(keyword);
  return made(std::move(out), at.path);
}

std::optional<OrderedJson> SchemaJoiner::negated(const SchemaPlace& given) const {
  const SchemaPlace at = reader_.followed(given);
  const OrderedJson& schema = *at.schema;
  budget_.spend(weight(schema));
  if (schema.is_boolean()) return !schema.get<bool>();
  if (!schema.is_object()) at.fail("need an object, true or false");
  SchemaReader::check_keywords(at);
  std::vector<std::string> keys;
  for (const auto& [key, value] : schema.items()) {
    if (!is_note(key)) keys.push_back(key);
  }
  if (keys.empty()) return false;
  const bool is_of_objects = schema.contains("type") && schema["type"] == "object";
  if (is_of_objects && keys.size() > 1) std::erase(keys, "type");
  auto has_only = [&](std::vector<std::string> wanted) {
    std::sort(keys.begin(), keys.end());
    return keys == wanted;
  };
  auto each = [](const OrderedJson& list) {
    OrderedJson out = OrderedJson::array();
    for (const OrderedJson& one : list) out.push_back({{"not", one}});
    return out;
  };
  if (has_only({"not"})) return schema["not"];
  if (has_only({"anyOf"})) return OrderedJson{{"allOf", each(schema["anyOf"])}};
  if (has_only({"allOf"})) return OrderedJson{{"anyOf", each(schema["allOf"])}};
  if (has_only({"type"})) {
    const std::vector<std::string> not_these = reader_.types(at);
    OrderedJson out = OrderedJson::array();
    for (const char* type : {"object", "array", "string", "number", "boolean", "null"}) {
      const bool is_taken = std::any_of(not_these.begin(), not_these.end(), [&](const auto& one) {
        return one == type || (one == "integer" && std::string_view(type) == "number");
      });
      if (!is_taken) out.push_back(type);
    }
    if (out.empty()) return false;
    return OrderedJson{{"type", std::move(out)}};
  }
  auto lacks = [](const OrderedJson& name) {
    return OrderedJson{{"type", "object"}, {kForbidden, OrderedJson::array({name})}};
  };
  if (has_only({"required"}) && schema["required"].is_array() && !schema["required"].empty()) {
    OrderedJson out = OrderedJson::array();
    for (const OrderedJson& name : schema["required"]) {
      if (!name.is_string()) at.fail("required: need a list of names");
      out.push_back(lacks(name));
    }
    return OrderedJson{{"anyOf", std::move(out)}};
  }
  const bool is_one = schema.contains("properties") && schema["properties"].is_object() &&
                      schema["properties"].size() == 1;
  if (is_one && (has_only({"properties"}) || has_only({"properties", "required"}))) {
    const auto property = schema["properties"].items().begin();
    const OrderedJson names = OrderedJson::array({property.key()});
    OrderedJson other = {{"type", "object"},
                         {"required", names},
                         {"properties", {{property.key(), {{"not", property.value()}}}}}};
    if (keys.size() == 1) return other;
    if (schema["required"] != names) return std::nullopt;
    return OrderedJson{{"anyOf", OrderedJson::array({lacks(property.key()), std::move(other)})}};
  }
  return std::nullopt;
}

std::optional<std::vector<SchemaPlace>> SchemaJoiner::exclusive(
    const std::vector<SchemaPlace>& branches, std::vector<SchemaPlace> whole) {
  for (std::size_t i = 0; i < branches.size(); ++i) {
    auto otherwise = negated(branches[i]);
    if (!otherwise) return std::nullopt;
    const SchemaPlace none = made(std::move(*otherwise), branches[i].path);
    for (std::size_t j = 0; j < whole.size(); ++j) {
      if (j != i) whole[j] = both(whole[j], none);
    }
  }
  return whole;
}

SchemaPlace SchemaJoiner::written_out(const SchemaPlace& at) {
  const OrderedJson& schema = *at.schema;
  const bool is_tuple = schema.contains("items") && schema["items"].is_array();
  static constexpr std::array kShort = {"if", "then", "else", "dependentRequired", "not"};
  const bool has_short = std::any_of(kShort.begin(), kShort.end(),
                                     [&](const char* key) { return schema.contains(key); });
  if (!is_tuple && !has_short && !schema.contains("additionalItems")) return at;
  budget_.spend(weight(schema));
  OrderedJson out = schema;
  if (is_tuple) {  // as before 2020
    if (schema.contains("prefixItems")) at.fail("items: a list does not go with prefixItems");
    out["prefixItems"] = schema["items"];
    out.erase("items");
    if (schema.contains("additionalItems")) out["items"] = schema["additionalItems"];
    if (out["prefixItems"].empty()) out.erase("prefixItems");
  }
  out.erase("additionalItems");
  OrderedJson parts = OrderedJson::array();
  if (schema.contains("if")) {
    const auto otherwise = negated(at.in("if"));
    if (!otherwise) {
      at.fail(
          "'if' is supported where it names one property's values, or properties that are "
          "required");
    }
    auto branch = [&](const char* keyword, const OrderedJson& condition) {
      return schema.contains(keyword) ? all_of(condition, schema[keyword], budget_) : condition;
    };
    parts.push_back({{"anyOf", OrderedJson::array(
                                   {branch("then", schema["if"]), branch("else", *otherwise)})}});
  }
  for (const char* key : {"if", "then", "else"}) out.erase(key);
  if (schema.contains("dependentRequired")) {
    if (!schema["dependentRequired"].is_object()) at.fail("dependentRequired: need an object");
    for (const auto& [name, names] : schema["dependentRequired"].items()) {
      if (!names.is_array()) at.fail("dependentRequired: need lists of names");
      OrderedJson with = {{"required", names}};
      with["required"].push_back(name);
      parts.push_back(
          {{"anyOf",
            OrderedJson::array({OrderedJson{{kForbidden, OrderedJson::array({name})}}, with})}});
    }
    out.erase("dependentRequired");
  }
  if (schema.contains("not")) {
    if (auto otherwise = negated(at.in("not"))) {
      out.erase("not");
      parts.push_back(std::move(*otherwise));
    }
  }
  if (!parts.empty()) {
    if (schema.contains("allOf")) parts.push_back({{"allOf", schema["allOf"]}});
    out["allOf"] = std::move(parts);
  }
  return made(std::move(out), at.path);
}

}  // namespace stretto::grammar
