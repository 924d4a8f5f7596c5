#include "stretto/server/grammar/schema_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>
#include <utility>

#include "stretto/base/printable.h"

namespace stretto::grammar {
namespace {

constexpr std::array kHonoured = {"type",
                                  "enum",
                                  "const",
                                  "properties",
                                  "required",
                                  "additionalProperties",
                                  "items",
                                  "minItems",
                                  "maxItems",
                                  "prefixItems",
                                  "minLength",
                                  "maxLength",
                                  "pattern",
                                  "format",
                                  "minimum",
                                  "maximum",
                                  "exclusiveMinimum",
                                  "exclusiveMaximum",
                                  "anyOf",
                                  "oneOf",
                                  "allOf",
                                  "$ref",
                                  "not",
                                  "if",
                                  "then",
                                  "else",
                                  "patternProperties",
                                  "propertyNames",
                                  "minProperties",
                                  "maxProperties",
                                  "dependentRequired",
                                  "additionalItems",
                                  "uniqueItems",
                                  "multipleOf",
                                  kAlso,
                                  kForbidden};
constexpr std::array kNotes = {"title",           "description",      "default",  "example",
                               "examples",        "$schema",          "$id",      "id",
                               "$comment",        "deprecated",       "readOnly", "writeOnly",
                               "$defs",           "definitions",      "$anchor",  "discriminator",
                               "contentEncoding", "contentMediaType", "nullable"};

template <typename List>
bool has(const List& list, std::string_view word) {
  return std::find(list.begin(), list.end(), word) != list.end();
}

const OrderedJson& any_schema() {
  static const OrderedJson value = true;
  return value;
}

std::string escaped(std::string_view key) {
  std::string out;
  for (char c : key) {
    if (c == '~')
      out += "~0";
    else if (c == '/')
      out += "~1";
    else
      out += c;
  }
  return out;
}

// Every place of a large schema has its own: a long one is cut.
std::string further(const std::string& path, std::string_view keyword) {
  constexpr std::size_t kMost = 300;
  if (path.size() > kMost) return path;
  return path + '/' + std::string(keyword.substr(0, kMost));
}

std::string further(const std::string& path, std::string_view keyword, std::string_view key) {
  return further(further(path, keyword), escaped(key.substr(0, 300)));
}

std::string type_of(const OrderedJson& value) {
  if (value.is_object()) return "object";
  if (value.is_array()) return "array";
  if (value.is_string()) return "string";
  if (value.is_boolean()) return "boolean";
  return value.is_null() ? "null" : "number";
}

bool is_of_type(const OrderedJson& value, const std::string& type) {
  if (type != "integer") return type_of(value) == type;
  if (value.is_number_integer()) return true;
  return value.is_number_float() && std::trunc(value.get<double>()) == value.get<double>();
}

bool are_apart(const std::set<std::string>& a, const std::set<std::string>& b) {
  return std::none_of(a.begin(), a.end(), [&](const std::string& x) { return b.contains(x); });
}

}  // namespace

std::int64_t weight(const OrderedJson& json) {
  if (json.is_string())
    return 20 + static_cast<std::int64_t>(json.get_ref<const std::string&>().size());
  std::int64_t out = 20;
  if (json.is_structured()) {
    for (const OrderedJson& one : json) out += weight(one);
  }
  return out;
}

bool is_note(std::string_view keyword) { return has(kNotes, keyword) || keyword.starts_with("x-"); }

void SchemaPlace::fail(const std::string& what) const {
  throw GrammarError(fmt::format(
      "{}: {}", path.empty() ? "the schema" : "schema at " + printable(path, 200), what));
}

bool SchemaPlace::has_only(std::string_view keyword) const {
  const auto items = schema->items();
  return std::all_of(items.begin(), items.end(), [&](const auto& item) {
    return item.key() == keyword || is_note(item.key());
  });
}

void SchemaPlace::refuse_beside(const char* keyword, std::initializer_list<const char*> but) const {
  for (const auto& [key, value] : schema->items()) {
    if (key == keyword || is_note(key) || has(but, key)) continue;
    fail(fmt::format("'{}' beside '{}' is not supported", printable(key, 40), keyword));
  }
}

SchemaPlace SchemaPlace::in(const char* keyword) const {
  return {&schema->at(keyword), further(path, keyword)};
}

SchemaPlace SchemaPlace::in(const char* keyword, const std::string& key) const {
  return {&schema->at(keyword).at(key), further(path, keyword, key)};
}

void SchemaReader::check_keywords(const SchemaPlace& at) {
  for (const auto& [key, value] : at.schema->items()) {
    if (has(kHonoured, key) || is_note(key)) continue;
    at.fail(fmt::format("the keyword '{}' is not supported", printable(key, 60)));
  }
}

SchemaPlace SchemaReader::resolved(const SchemaPlace& at, const char* keyword) const {
  const OrderedJson& value = at.schema->at(keyword);
  if (!value.is_string()) at.fail("$ref: need a text");
  const auto given = value.get<std::string>();
  budget_.spend(10 + static_cast<std::int64_t>(given.size()));
  if (given != "#" && !given.starts_with("#/")) {
    at.fail("$ref '" + printable(given, 80) + "' is not supported: need '#' or '#/...'");
  }
  std::string path;
  for (std::size_t i = 1; i < given.size(); ++i) {
    const std::string digits = given[i] == '%' ? given.substr(i + 1, 2) : "";
    const bool is_byte =
        digits.size() == 2 && digits.find_first_not_of("0123456789abcdefABCDEF") == digits.npos;
    path += is_byte ? static_cast<char>(std::stoi(digits, nullptr, 16)) : given[i];
    if (is_byte) i += 2;
  }
  try {
    const OrderedJson::json_pointer pointer(path);
    if (root_.contains(pointer)) return {&root_.at(pointer), path.substr(0, 300)};
  } catch (const nlohmann::json::exception&) {
  }
  at.fail("$ref '" + printable(given, 80) + "' leads nowhere");
}

SchemaPlace SchemaReader::followed(SchemaPlace at) const {
  for (int i = 0; i < kMostHops; ++i) {
    if (!at.schema->is_object() || !at.schema->contains("$ref")) return at;
    at = resolved(at, "$ref");
  }
  at.fail("references lead in a circle");
}

std::vector<SchemaPlace> SchemaReader::branches(const SchemaPlace& at, const char* keyword) const {
  const OrderedJson& list = at.schema->at(keyword);
  if (!list.is_array() || list.empty()) at.fail(fmt::format("{}: need a list of schemas", keyword));
  if (list.size() > kMostBranches) {
    at.fail(fmt::format("{}: {} branches, at most {}", keyword, list.size(), kMostBranches));
  }
  budget_.spend(10 + 5 * static_cast<std::int64_t>(list.size()));
  std::vector<SchemaPlace> out;
  for (std::size_t i = 0; i < list.size(); ++i) {
    out.push_back({&list[i], further(at.path, keyword, std::to_string(i))});
  }
  return out;
}

std::optional<std::set<std::string>> SchemaReader::kinds(const SchemaPlace& given,
                                                         int depth) const {
  budget_.spend(10);
  const SchemaPlace at = followed(given);
  if (!at.schema->is_object() || depth > kMostHops) return std::nullopt;
  std::set<std::string> out;
  if (at.schema->contains("const") || at.schema->contains("enum")) {
    for (const OrderedJson* value : values(at)) out.insert(type_of(*value));
    return out;
  }
  for (const char* keyword : {"anyOf", "oneOf"}) {
    if (!at.schema->contains(keyword)) continue;
    for (const SchemaPlace& branch : branches(at, keyword)) {
      auto its = kinds(branch, depth + 1);
      if (!its) return std::nullopt;
      out.insert(its->begin(), its->end());
    }
    return out;
  }
  for (const std::string& type : types(at)) out.insert(type == "integer" ? "number" : type);
  if (out.empty()) return std::nullopt;
  return out;
}

std::optional<std::set<std::string>> SchemaReader::finite_values(const SchemaPlace& given) const {
  const SchemaPlace at = followed(given);
  if (!at.schema->is_object()) return std::nullopt;
  if (!at.schema->contains("const") && !at.schema->contains("enum")) return std::nullopt;
  std::set<std::string> out;
  for (const OrderedJson* value : values(at)) {
    budget_.spend(weight(*value) / 4);
    // 1 and 1.0 are the same value.
    out.insert(value->is_number() ? fmt::format("{}", value->get<double>()) : value->dump());
  }
  return out;
}

SchemaReader::Apart SchemaReader::told_apart_by(const std::vector<SchemaPlace>& given) const {
  struct Branch {
    SchemaPlace place;
    std::optional<std::set<std::string>> kinds, values;
  };
  std::vector<Branch> all;
  for (const SchemaPlace& branch : given) {
    all.push_back({followed(branch), kinds(branch, 0), finite_values(branch)});
  }
  Apart out;
  auto apart_by_property = [&](const Branch& a, const Branch& b) {
    const std::set<std::string> object = {"object"};
    if (a.kinds != object || b.kinds != object) return false;
    if (!a.place.schema->contains("properties") || !b.place.schema->contains("properties")) {
      return false;
    }
    const OrderedJson& others = b.place.schema->at("properties");
    for (const auto& [name, schema] : a.place.schema->at("properties").items()) {
      budget_.spend(5 + static_cast<std::int64_t>(others.size()) / 8);
      auto other = others.find(name);
      if (other == others.end()) continue;
      auto in_a = finite_values({&schema, further(a.place.path, "properties", name)});
      auto in_b = finite_values({&*other, further(b.place.path, "properties", name)});
      if (in_a && in_b && are_apart(*in_a, *in_b)) {
        out.by.insert(name);
        return true;
      }
    }
    return false;
  };
  for (std::size_t i = 0; i < all.size(); ++i) {
    for (std::size_t j = i + 1; j < all.size(); ++j) {
      const Branch &a = all[i], &b = all[j];
      budget_.spend(5 + static_cast<std::int64_t>(a.values ? a.values->size() : 0));
      if (a.kinds && b.kinds && are_apart(*a.kinds, *b.kinds)) continue;
      if (a.values && b.values && are_apart(*a.values, *b.values)) continue;
      if (apart_by_property(a, b)) continue;
      return {.alike = {{i, j}}};
    }
  }
  return out;
}

std::vector<std::string> SchemaReader::types(const SchemaPlace& at) const {
  static constexpr std::array kTypes = {"object", "array",   "string", "integer",
                                        "number", "boolean", "null"};
  const OrderedJson& schema = *at.schema;
  std::vector<std::string> out;
  if (schema.contains("type")) {
    const OrderedJson& type = schema["type"];
    budget_.spend(weight(type) / 2);
    const OrderedJson list = type.is_array() ? type : OrderedJson::array({type});
    for (const OrderedJson& one : list) {
      if (!one.is_string() || !has(kTypes, one.get<std::string>())) {
        at.fail("type: need object, array, string, integer, number, boolean or null");
      }
      if (!has(out, one.get<std::string>())) out.push_back(one.get<std::string>());
    }
    if (out.empty()) at.fail("type: need one at least");
    // Whole numbers are numbers; without bounds of their own they add nothing.
    if (has(out, "number")) std::erase(out, "integer");
    return out;
  }
  static constexpr std::pair<const char*, const char*> kOwners[] = {
      {"properties", "object"},
      {"required", "object"},
      {"additionalProperties", "object"},
      {"items", "array"},
      {"prefixItems", "array"},
      {"minItems", "array"},
      {"maxItems", "array"},
      {"minLength", "string"},
      {"maxLength", "string"},
      {"pattern", "string"},
      {"format", "string"},
      {"minimum", "number"},
      {"maximum", "number"},
      {"exclusiveMinimum", "number"},
      {"exclusiveMaximum", "number"},
      {"multipleOf", "number"},
      {"patternProperties", "object"},
      {"propertyNames", "object"},
      {"minProperties", "object"},
      {"maxProperties", "object"},
      {kForbidden, "object"},
      {"uniqueItems", "array"},
      {kAlso, "string"}};
  for (const auto& [keyword, type] : kOwners) {
    if (schema.contains(keyword) && !has(out, type)) out.emplace_back(type);
  }
  return out;
}

std::vector<const OrderedJson*> SchemaReader::values(const SchemaPlace& at) const {
  const OrderedJson& schema = *at.schema;
  budget_.spend(schema.contains("enum") ? static_cast<std::int64_t>(schema["enum"].size()) : 1);
  std::vector<const OrderedJson*> out;
  if (schema.contains("enum") && schema["enum"].empty()) return out;
  at.refuse_beside("enum", {"const", "type", "not"});
  if (schema.contains("const")) {
    out.push_back(&schema["const"]);
  } else {
    if (!schema["enum"].is_array()) at.fail("enum: need a list");
    for (const OrderedJson& value : schema["enum"]) out.push_back(&value);
  }
  if (schema.contains("const") && schema.contains("enum")) {
    const OrderedJson& list = schema["enum"];
    if (std::find(list.begin(), list.end(), schema["const"]) == list.end()) out.clear();
  }
  if (schema.contains("type")) {
    const std::vector<std::string> its_types = types(at);
    std::erase_if(out, [&](const OrderedJson* value) {
      return std::none_of(its_types.begin(), its_types.end(),
                          [&](const std::string& type) { return is_of_type(*value, type); });
    });
  }
  return out;
}

std::optional<int> SchemaReader::count(const SchemaPlace& at, const char* keyword, int most) const {
  if (!at.schema->contains(keyword)) return std::nullopt;
  const OrderedJson& value = (*at.schema)[keyword];
  const bool is_count =
      value.is_number() && value.get<double>() >= 0 && is_of_type(value, "integer");
  if (!is_count) at.fail(fmt::format("{}: need a whole number from 0", keyword));
  if (value.get<double>() > most) {
    at.fail(fmt::format("{}: at most {} is supported", keyword, most));
  }
  return value.get<int>();
}

NumberBounds SchemaReader::bounds(const SchemaPlace& at) {
  const OrderedJson& schema = *at.schema;
  NumberBounds out;
  auto read = [&](const char* keyword, bool excludes, bool is_min) {
    if (!schema.contains(keyword)) return;
    if (!schema[keyword].is_number()) at.fail(fmt::format("{}: need a number", keyword));
    const auto other = is_min ? "minimum" : "maximum";
    if (excludes && schema.contains(other)) {
      const double plain = schema[other].get<double>(), own = schema[keyword].get<double>();
      if (is_min ? own < plain : own > plain) return;
    }
    try {
      (is_min ? out.min : out.max) = Decimal::of(Json(schema[keyword]));
    } catch (const GrammarError& e) {
      at.fail(fmt::format("{}: {}", keyword, e.what()));
    }
    (is_min ? out.excludes_min : out.excludes_max) = excludes;
  };
  read("minimum", false, true);
  read("exclusiveMinimum", true, true);
  read("maximum", false, false);
  read("exclusiveMaximum", true, false);
  if (schema.contains("multipleOf")) {
    const OrderedJson& value = schema["multipleOf"];
    if (!value.is_number() || value <= 0) at.fail("multipleOf: need a number above 0");
    try {
      out.multiple = Decimal::of(Json(value));
      check_multiple(*out.multiple);
    } catch (const GrammarError& e) {
      at.fail(fmt::format("multipleOf: {}", e.what()));
    }
  }
  return out;
}

SchemaReader::Object SchemaReader::object(const SchemaPlace& at,
                                          const std::set<std::string>& forced, int most) const {
  const OrderedJson& schema = *at.schema;
  Object out;
  if (schema.contains(kForbidden)) {
    for (const OrderedJson& name : schema[kForbidden]) out.forbidden.insert(name);
  }
  std::set<std::string> required;
  std::vector<std::string> in_order;
  if (schema.contains("required")) {
    if (!schema["required"].is_array()) at.fail("required: need a list of names");
    for (const OrderedJson& name : schema["required"]) {
      budget_.spend(weight(name) / 8);
      if (!name.is_string()) at.fail("required: need a list of names");
      if (required.insert(name.get<std::string>()).second) in_order.push_back(name);
    }
  }
  if (schema.contains("properties")) {
    if (!schema["properties"].is_object()) at.fail("properties: need an object");
    for (const auto& [name, its] : schema["properties"].items()) {
      budget_.spend(5 + static_cast<std::int64_t>(name.size()) / 8);
      if (its == false) {
        out.forbidden.insert(name);
        continue;
      }
      out.members.push_back({.name = name,
                             .place = {&its, further(at.path, "properties", name)},
                             .is_required = required.contains(name) || forced.contains(name)});
      required.erase(name);
    }
  }
  if (schema.contains("patternProperties")) {
    if (!schema["patternProperties"].is_object()) at.fail("patternProperties: need an object");
    for (const auto& [pattern, its] : schema["patternProperties"].items()) {
      budget_.spend(5 + static_cast<std::int64_t>(pattern.size()) / 8);
      out.patterns.push_back({pattern, {&its, further(at.path, "patternProperties", pattern)}});
    }
  }
  if (schema.contains("propertyNames")) out.names = at.in("propertyNames");
  out.min = count(at, "minProperties", most).value_or(0);
  out.max = count(at, "maxProperties", most).value_or(-1);
  const bool is_listed = !out.members.empty() || !out.patterns.empty();
  if (schema.contains("additionalProperties")) {
    out.additional = at.in("additionalProperties");
    if (*out.additional->schema == false) out.additional.reset();
  } else if (!is_listed) {
    out.additional = SchemaPlace{&any_schema(), at.path};
  }
  for (const std::string& name : in_order) {
    if (!required.contains(name)) continue;
    // What it is, the patterns say, or additionalProperties.
    out.members.push_back({.name = name, .place = {}, .is_required = true});
  }
  return out;
}

SchemaReader::Array SchemaReader::array(const SchemaPlace& at, int most) const {
  const OrderedJson& schema = *at.schema;
  Array out;
  if (schema.contains("prefixItems")) out.first = branches(at, "prefixItems");
  if (schema.contains("items")) {
    if (schema["items"] != false) out.items = at.in("items");
  } else {
    out.items = SchemaPlace{&any_schema(), at.path};
  }
  out.min = count(at, "minItems", most).value_or(0);
  out.max = count(at, "maxItems", most).value_or(-1);
  out.is_unique = schema.contains("uniqueItems") && schema["uniqueItems"] == true;
  return out;
}

}  // namespace stretto::grammar
