#include "stretto/server/grammar/json_schema.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "stretto/base/json_fields.h"
#include "stretto/base/printable.h"
#include "stretto/server/grammar/json_text.h"
#include "stretto/server/grammar/regex.h"
#include "stretto/server/grammar/schema_formats.h"
#include "stretto/server/grammar/schema_reader.h"

namespace stretto::grammar {
namespace {

constexpr int kMostDepth = 64;
constexpr int kMostLength = 2000;  // of maxLength and minLength, in characters
constexpr int kShortLength = 100;
constexpr int kMostItems = 10'000;       // of minItems and maxItems
constexpr std::size_t kMostKeys = 2000;  // of one object

class Compiler {
 public:
  Compiler(Rules& rules, const OrderedJson& root, const SchemaOptions& options, Budget& budget)
      : rules_(rules), reader_(root), budget_(budget), space_(json_space(options.is_compact)) {}

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

  ExprPtr of(const SchemaPlace& at, int depth, const Names& forced = {}) {
    budget_.spend();
    if (depth > kMostDepth) at.fail("nests too deeply");
    const OrderedJson& schema = *at.schema;
    if (schema.is_boolean()) return schema.get<bool>() ? any_value() : choice({});
    if (!schema.is_object()) at.fail("need an object, true or false");
    SchemaReader::check_keywords(at);
    if (schema.contains("$ref")) {
      at.refuse_beside("$ref", {});
      return reference(reader_.resolved(at, "$ref"), forced);
    }
    if (schema.contains("allOf")) return of(reader_.joined(at), depth + 1, forced);
    for (const char* name : {"anyOf", "oneOf"}) {
      if (!schema.contains(name)) continue;
      at.refuse_beside(name, {});
      return any_of(at, name, depth);
    }
    if (schema.contains("const") || schema.contains("enum")) return values(at);
    const std::vector<std::string> types = SchemaReader::types(at);
    if (types.empty()) return any_value();
    std::vector<ExprPtr> out;
    for (const std::string& type : types) out.push_back(of_type(type, at, depth, forced));
    return choice(std::move(out));
  }

  // One rule for each place that is referred to, which may lead back to itself.
  ExprPtr reference(const SchemaPlace& target, const Names& forced) {
    std::string key = target.path;
    for (const std::string& name : forced) key += '\n' + name;
    auto [at, is_new] = rule_of_.try_emplace(key, -1);
    if (is_new) {
      at->second = rules_.add(nullptr);
      pending_.push_back({at->second, target, forced});
    }
    return rule(at->second);
  }

  ExprPtr any_of(const SchemaPlace& at, const char* name, int depth) {
    const std::vector<SchemaPlace> branches = reader_.branches(at, name);
    Names forced;
    if (std::string_view(name) == "oneOf") forced = reader_.told_apart_by(at, branches);
    std::vector<ExprPtr> out;
    for (const SchemaPlace& branch : branches) out.push_back(of(branch, depth + 1, forced));
    return choice(std::move(out));
  }

  ExprPtr values(const SchemaPlace& at) {
    std::vector<ExprPtr> plain, structured;
    for (const OrderedJson* value : SchemaReader::values(at)) {
      budget_.spend();
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
    budget_.spend();
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
      return type == "integer" ? json_integer(bounds) : json_number(bounds);
    }
    if (type == "boolean") return terminal(choice({text("true"), text("false")}));
    return mark("null");
  }

  ExprPtr any_value() {
    if (any_value_ < 0) {
      any_value_ = rules_.add(nullptr);
      const int object = rules_.add(nullptr), array = rules_.add(nullptr);
      const ExprPtr value = rule(any_value_), comma = sequence({mark(","), space_});
      const ExprPtr member = sequence({key_but(Names()), mark(":"), space_, value});
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

  // Keys, of which none is one of the names. They have one spelling each, so that names are found.
  ExprPtr key_but(const Names& names) {
    if (names.empty()) return json_string(repeat(json_any_character(), 0, -1));
    ExprPtr all =
        sequence({text("\""), repeat(json_characters(complement({})), 0, -1), text("\"")});
    std::vector<ExprPtr> taken;
    for (const std::string& name : names) taken.push_back(text(json_quoted(name)));
    return terminal(but_not(std::move(all), choice(std::move(taken))));
  }

  // "{", then members: the rules from(i) have one of those from i on, after(i) go on behind one.
  ExprPtr object(const SchemaPlace& at, int depth, const Names& forced) {
    const SchemaReader::Object its = reader_.object(at, forced);
    if (its.members.size() > kMostKeys) at.fail("has too many properties");
    std::optional<ExprPtr> more;  // a member that is not listed
    if (its.additional) {
      Names names;
      for (const auto& member : its.members) names.insert(member.name);
      more = sequence({key_but(names), mark(":"), space_, of(*its.additional, depth + 1)});
    }
    const auto count = its.members.size();
    std::size_t last_required = 0;  // one behind it
    for (std::size_t i = 0; i < count; ++i) {
      if (its.members[i].is_required) last_required = i + 1;
    }
    const ExprPtr close = sequence({space_, mark("}")});
    const ExprPtr comma = sequence({mark(","), space_});
    auto with_close = [&](std::size_t i, ExprPtr other) {
      return i >= last_required ? choice({std::move(other), close}) : other;
    };
    ExprPtr from, after;  // of i + 1
    if (more) {
      const int index = rules_.add(nullptr);
      rules_.bodies[static_cast<std::size_t>(index)] =
          choice({sequence({comma, *more, rule(index)}), close});
      after = rule(index);
      from = sequence({*more, after});
    } else {
      after = close;
      from = choice({});
    }
    for (std::size_t i = count; i-- > 0;) {
      budget_.spend();
      const auto& member = its.members[i];
      ExprPtr one = sequence(
          {mark(json_quoted(member.name) + ":"), space_, of(member.place, depth + 1), after});
      const bool ends = i + 1 == count && !more;
      from = rule(rules_.add(member.is_required ? std::move(one)
                             : ends             ? std::move(one)
                                                : choice({std::move(one), from})));
      after = rule(rules_.add(with_close(i, sequence({comma, from}))));
    }
    return sequence(
        {mark("{"), space_, last_required > 0 ? from : choice({std::move(from), mark("}")})});
  }

  ExprPtr array(const SchemaPlace& at, int depth) {
    const SchemaReader::Array its = reader_.array(at, kMostItems);
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

  ExprPtr string(const SchemaPlace& at) {
    const OrderedJson& schema = *at.schema;
    const int min = SchemaReader::count(at, "minLength", kMostLength).value_or(0);
    const std::optional<int> max = SchemaReader::count(at, "maxLength", kMostLength);
    if (max && *max < min) at.fail("maxLength is below minLength");
    std::vector<ExprPtr> all;
    for (const char* name : {"pattern", "format"}) {
      if (!schema.contains(name)) continue;
      all.push_back(expression(at, name));
    }
    const bool is_free = all.empty();
    if (min > 0 || max || is_free) {
      // Every way to escape a character makes a long string's automaton twice as large.
      const bool is_short = std::max(min, max.value_or(0)) <= kShortLength;
      ExprPtr one = is_free && is_short ? json_any_character() : json_characters(complement({}));
      all.push_back(repeat(std::move(one), min, max.value_or(-1)));
    }
    ExprPtr content = all[0];
    for (std::size_t i = 1; i < all.size(); ++i) content = both(content, all[i]);
    return json_string(std::move(content));
  }

  ExprPtr expression(const SchemaPlace& at, const char* name) {
    const OrderedJson& value = (*at.schema)[name];
    if (!value.is_string()) at.fail(fmt::format("{}: need a text", name));
    const auto text = value.get<std::string>();
    RegexOptions options{.matches_whole = false, .written = json_characters};
    std::string_view regex = text;
    if (std::string_view(name) == "format") {
      auto known = regex_of_format(text);
      if (!known) at.fail("format '" + printable(text, 40) + "' is not supported");
      regex = *known;
      options.matches_whole = true;
    }
    try {
      return parse_regex(regex, options, budget_);
    } catch (const GrammarError& e) {
      at.fail(fmt::format("{}: {}", name, e.what()));
    }
  }

  Rules& rules_;
  SchemaReader reader_;
  Budget& budget_;
  ExprPtr space_;
  std::map<std::string, int> rule_of_;
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
