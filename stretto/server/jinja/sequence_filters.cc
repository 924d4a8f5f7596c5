#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <functional>

#include "stretto/server/jinja/builtins.h"
#include "stretto/server/jinja/error.h"
#include "stretto/server/jinja/filters.h"

namespace stretto::jinja {
namespace {

Values charged_items(Evaluator& evaluator, const Value& value) {
  Values items = to_items(value);
  evaluator.charge(items.size());
  return items;
}

// 'a.b.0' of an item, as filters take it; a missing part gives `absent`, or undefined.
Value dig(Evaluator& evaluator, const Value& item, const Value& path, const Value* absent) {
  if (path.is_integral()) return evaluator.item(item, path);
  Value at = item;
  std::string left = to_name(path);
  for (;;) {
    std::size_t dot = left.find('.');
    std::string name = left.substr(0, dot);
    bool is_index = !name.empty() && std::all_of(name.begin(), name.end(),
                                                 [](char c) { return c >= '0' && c <= '9'; });
    at = is_index && name.size() < 18 ? evaluator.item(at, Value::integer(std::stoll(name)))
                                      : evaluator.item(at, Value::text(name));
    if (at.is_undefined() && absent != nullptr) at = *absent;
    if (dot == std::string::npos) return at;
    left.erase(0, dot + 1);
  }
}

// By what sort, unique, min and max compare.
Value key_of(Evaluator& evaluator, const Value& item, const Value* attribute, bool case_sensitive) {
  Value key = attribute != nullptr && !attribute->is_none()
                  ? dig(evaluator, item, *attribute, nullptr)
                  : item;
  if (!case_sensitive && key.is_text()) {
    evaluator.charge_text(key.as_text().size());
    return Value::text(lower(key.as_text()));
  }
  return key;
}

Values sorted(Evaluator& evaluator, Values items, bool reverse,
              const std::function<Value(const Value&)>& key) {
  std::vector<std::pair<Value, Value>> keyed;
  for (Value& item : items) {
    Value its_key = key(item);
    keyed.emplace_back(std::move(its_key), std::move(item));
  }
  evaluator.charge(items.size() * 16);
  // An order that is none (NaN) must not confuse the sort: the merge is our own.
  auto before = [&](const auto& a, const auto& b) {
    evaluator.charge_comparison(a.first, b.first);
    return reverse ? less(b.first, a.first) : less(a.first, b.first);
  };
  for (std::size_t width = 1; width < keyed.size(); width *= 2) {
    std::vector<std::pair<Value, Value>> merged;
    for (std::size_t begin = 0; begin < keyed.size(); begin += 2 * width) {
      std::size_t a = begin, b = std::min(begin + width, keyed.size());
      const std::size_t a_end = b, b_end = std::min(begin + 2 * width, keyed.size());
      while (a < a_end || b < b_end) {
        bool takes_b = a == a_end || (b < b_end && before(keyed[b], keyed[a]));
        merged.push_back(keyed[takes_b ? b++ : a++]);
      }
    }
    keyed = std::move(merged);
  }
  Values out;
  for (auto& [its_key, item] : keyed) out.push_back(std::move(item));
  return out;
}

Value filter_dictsort(Evaluator& evaluator, const Value& value, Arguments& arguments) {
  Given given("dictsort", arguments, {"case_sensitive", "by", "reverse"});
  if (!value.is(Value::Kind::kDict)) fail("dictsort takes a dict, not {}", value.type_name());
  const std::string by = to_utf8(given.text(1, U"key"));
  if (by != "key" && by != "value") fail("You can only sort by either \"key\" or \"value\"");
  Values items;
  for (const auto& [key, held] : value.as_dict().items) items.push_back(Value::tuple({key, held}));
  return Value::list(
      sorted(evaluator, std::move(items), given.truth(2, false), [&](const Value& item) {
        return key_of(evaluator, item.items()[by == "key" ? 0 : 1], nullptr, given.truth(0, false));
      }));
}

Value filter_first(Evaluator& evaluator, const Value& value, Arguments& arguments) {
  Given("first", arguments, {});
  if (value.is(Value::Kind::kGenerator)) {
    Generator& generator = value.as_generator();
    if (generator.next < generator.items.size()) return generator.items[generator.next++];
    return Value::undefined("No first item, sequence was empty.");
  }
  Values items = charged_items(evaluator, value);
  return items.empty() ? Value::undefined("No first item, sequence was empty.") : items.front();
}

Value filter_last(Evaluator& evaluator, const Value& value, Arguments& arguments) {
  Given("last", arguments, {});
  if (value.is(Value::Kind::kGenerator)) fail("'generator' object is not reversible");
  Values items = charged_items(evaluator, value);
  if (items.empty()) return Value::undefined("No last item, sequence was empty.");
  return value.is_safe() ? Value::text(items.back().as_text(), true) : items.back();
}

Value filter_items(Evaluator& evaluator, const Value& value, Arguments& arguments) {
  Given("items", arguments, {});
  if (value.is_undefined()) return Value::generator({});
  if (!value.is(Value::Kind::kDict)) fail("Can only get item pairs from a mapping.");
  Values out;
  for (const auto& [key, held] : value.as_dict().items) out.push_back(Value::tuple({key, held}));
  evaluator.charge(out.size());
  return Value::generator(std::move(out));
}

Value filter_join(Evaluator& evaluator, const Value& value, Arguments& arguments) {
  Given given("join", arguments, {"d", "attribute"});
  const Text separator = given.text(0, U"");
  Text out;
  bool is_first = true;
  for (const Value& item : charged_items(evaluator, value)) {
    if (!std::exchange(is_first, false)) out += separator;
    bool has_attribute = given.has(1) && !given[1].is_none();
    evaluator.charge_text(separator.size());
    out += charged_str(evaluator, has_attribute ? dig(evaluator, item, given[1], nullptr) : item);
  }
  return Value::text(std::move(out));
}

Value filter_length(Evaluator&, const Value& value, Arguments& arguments) {
  using Kind = Value::Kind;
  Given("length", arguments, {});
  std::size_t size = 0;
  if (value.is_text()) {
    size = value.as_text().size();
  } else if (value.is_sequence()) {
    size = value.items().size();
  } else if (value.is(Kind::kDict)) {
    size = value.as_dict().items.size();
  } else if (!value.is_undefined()) {
    fail("object of type '{}' has no len()", value.type_name());
  }
  return Value::integer(static_cast<std::int64_t>(size));
}

Value filter_list(Evaluator& evaluator, const Value& value, Arguments& arguments) {
  Given("list", arguments, {});
  return Value::list(charged_items(evaluator, value));
}

Value filter_map(Evaluator& evaluator, const Value& value, Arguments& arguments) {
  Values out;
  if (!value.truth()) return Value::generator({});
  if (arguments.positional.empty()) {
    Given given("map", arguments, {"attribute", "default"}, 1);
    Value absent = given.has(1) ? given[1] : Value();
    for (const Value& item : charged_items(evaluator, value)) {
      out.push_back(dig(evaluator, item, given[0], given.has(1) ? &absent : nullptr));
    }
    return Value::generator(std::move(out));
  }
  const std::string name = to_name(arguments.positional.front());
  for (const Value& item : charged_items(evaluator, value)) {
    Arguments rest{{arguments.positional.begin() + 1, arguments.positional.end()}, arguments.named};
    out.push_back(evaluator.filter(name, item, rest));
  }
  return Value::generator(std::move(out));
}

template <bool kMax>
Value filter_extreme(Evaluator& evaluator, const Value& value, Arguments& arguments) {
  Given given("min and max", arguments, {"case_sensitive", "attribute"});
  Values items = charged_items(evaluator, value);
  if (items.empty()) return Value::undefined("No aggregated item, sequence was empty.");
  auto key = [&](const Value& item) {
    return key_of(evaluator, item, given.has(1) ? &given[1] : nullptr, given.truth(0, false));
  };
  std::size_t best = 0;
  for (std::size_t i = 1; i < items.size(); ++i) {
    Value mine = key(items[i]), its = key(items[best]);
    evaluator.charge_comparison(mine, its);
    if (kMax ? less(its, mine) : less(mine, its)) best = i;
  }
  return items[best];
}

// select, reject and those by attribute.
template <bool kKeeps, bool kByAttribute>
Value filter_select(Evaluator& evaluator, const Value& value, Arguments& arguments) {
  if (!value.truth()) return Value::generator({});
  std::size_t at = 0;
  Value path;
  if (kByAttribute) {
    if (arguments.positional.empty()) fail("Missing parameter for attribute name");
    path = arguments.positional[at++];
  }
  const bool has_test = at < arguments.positional.size();
  const std::string name = has_test ? to_name(arguments.positional[at++]) : "";
  Values out;
  for (const Value& item : charged_items(evaluator, value)) {
    Value tested = kByAttribute ? dig(evaluator, item, path, nullptr) : item;
    Arguments rest{{arguments.positional.begin() + static_cast<std::ptrdiff_t>(at),
                    arguments.positional.end()},
                   arguments.named};
    bool is = has_test ? evaluator.test(name, tested, rest) : tested.truth();
    if (is == kKeeps) out.push_back(item);
  }
  return Value::generator(std::move(out));
}

Value filter_reverse(Evaluator& evaluator, const Value& value, Arguments& arguments) {
  Given("reverse", arguments, {});
  if (value.is_text()) {
    Text text = charged_str(evaluator, value);
    std::reverse(text.begin(), text.end());
    return Value::text(std::move(text), value.is_safe());
  }
  Values items = charged_items(evaluator, value);
  std::reverse(items.begin(), items.end());
  return Value::generator(std::move(items));
}

Value filter_sort(Evaluator& evaluator, const Value& value, Arguments& arguments) {
  Given given("sort", arguments, {"reverse", "case_sensitive", "attribute"});
  // A list of keys, as in jinja2: lists of equal items that have no order compare well.
  auto keys_of = [&](const Value& item) {
    const bool case_sensitive = given.truth(1, false);
    if (!given.has(2) || !given[2].is_text()) {
      return Value::list(
          {key_of(evaluator, item, given.has(2) ? &given[2] : nullptr, case_sensitive)});
    }
    Values keys;  // of 'a,b' both
    Text left = to_text(to_name(given[2]));
    for (;;) {
      std::size_t comma = find_in(left, U",");
      Value name = Value::text(left.substr(0, comma));
      keys.push_back(key_of(evaluator, item, &name, case_sensitive));
      if (comma == Text::npos) break;
      left.erase(0, comma + 1);
    }
    return Value::list(std::move(keys));
  };
  return Value::list(
      sorted(evaluator, charged_items(evaluator, value), given.truth(0, false), keys_of));
}

Value filter_sum(Evaluator& evaluator, const Value& value, Arguments& arguments) {
  Given given("sum", arguments, {"attribute", "start"});
  Value total = given.has(1) ? given[1] : Value::integer(0);
  for (const Value& item : charged_items(evaluator, value)) {
    bool has_attribute = given.has(0) && !given[0].is_none();
    total = binary(evaluator, "+", total,
                   has_attribute ? dig(evaluator, item, given[0], nullptr) : item);
  }
  return total;
}

Value filter_unique(Evaluator& evaluator, const Value& value, Arguments& arguments) {
  Given given("unique", arguments, {"case_sensitive", "attribute"});
  Dict seen;
  Values out;
  for (const Value& item : charged_items(evaluator, value)) {
    Value key = key_of(evaluator, item, given.has(1) ? &given[1] : nullptr, given.truth(0, false));
    evaluator.charge(key.extent().size);
    if (seen.find(key) != nullptr) continue;
    seen.set(key, Value::none());
    out.push_back(item);
  }
  return Value::generator(std::move(out));
}

constexpr NamedFilter kSequenceFilters[] = {
    {"count", filter_length},
    {"dictsort", filter_dictsort},
    {"first", filter_first},
    {"items", filter_items},
    {"join", filter_join},
    {"last", filter_last},
    {"length", filter_length},
    {"list", filter_list},
    {"map", filter_map},
    {"max", filter_extreme<true>},
    {"min", filter_extreme<false>},
    {"reject", filter_select<false, false>},
    {"rejectattr", filter_select<false, true>},
    {"reverse", filter_reverse},
    {"select", filter_select<true, false>},
    {"selectattr", filter_select<true, true>},
    {"sort", filter_sort},
    {"sum", filter_sum},
    {"unique", filter_unique},
};

}  // namespace

Filter find_sequence_filter(const std::string& name) {
  for (const NamedFilter& one : kSequenceFilters) {
    if (name == one.name) return one.call;
  }
  return nullptr;
}

}  // namespace stretto::jinja
