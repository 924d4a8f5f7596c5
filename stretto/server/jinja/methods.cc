#include <algorithm>
#include <array>
#include <optional>

#include "stretto/server/jinja/builtins.h"
#include "stretto/server/jinja/error.h"

namespace stretto::jinja {
namespace {

using Method = Value (*)(Evaluator&, const Value& self, Arguments&);

struct Named {
  const char* name;
  Method call;
};

Value texts(const std::vector<Text>& parts) {
  Values out;
  for (const Text& part : parts) out.push_back(Value::text(part));
  return Value::list(std::move(out));
}

template <bool kLeft, bool kRight>
Value strip_method(Evaluator& evaluator, const Value& self, Arguments& arguments) {
  Given given("strip", arguments, {"chars"});
  const bool has_chars = given.has(0) && !given[0].is_none();
  evaluator.charge_text(self.as_text().size());
  return Value::text(
      Text(strip(self.as_text(), has_chars ? &given.need_text(0) : nullptr, kLeft, kRight)));
}

// By white space where `separator` is null. `most` pieces cut off, -1: all.
std::vector<Text> split(TextView text, const Text* separator, std::int64_t most) {
  std::vector<Text> out;
  if (separator == nullptr) {
    for (;;) {
      text = strip(text, nullptr, true, false);
      if (text.empty()) return out;
      if (most-- == 0) {
        out.emplace_back(strip(text, nullptr, false, true));
        return out;
      }
      auto end =
          static_cast<std::size_t>(std::find_if(text.begin(), text.end(), is_space) - text.begin());
      out.emplace_back(text.substr(0, end));
      text.remove_prefix(end);
    }
  }
  for (; most != 0; --most) {
    std::size_t at = find_in(text, *separator);
    if (at == TextView::npos) break;
    out.emplace_back(text.substr(0, at));
    text.remove_prefix(at + separator->size());
  }
  out.emplace_back(text);
  return out;
}

std::vector<Text> rsplit(TextView text, const Text* separator, std::int64_t most) {
  std::vector<Text> out;
  while (separator == nullptr) {
    text = strip(text, nullptr, false, true);
    if (text.empty()) break;
    if (most-- == 0) {
      out.emplace_back(strip(text, nullptr, true, false));
      break;
    }
    std::size_t begin = text.size();
    while (begin > 0 && !is_space(text[begin - 1])) --begin;
    out.emplace_back(text.substr(begin));
    text = text.substr(0, begin);
  }
  if (separator != nullptr) {
    for (; most != 0; --most) {
      std::size_t at = rfind_in(text, *separator);
      if (at == TextView::npos) break;
      out.emplace_back(text.substr(at + separator->size()));
      text = text.substr(0, at);
    }
    out.emplace_back(text);
  }
  std::reverse(out.begin(), out.end());
  return out;
}

template <bool kRight>
Value split_method(Evaluator& evaluator, const Value& self, Arguments& arguments) {
  Given given("split", arguments, {"sep", "maxsplit"});
  const bool has_separator = given.has(0) && !given[0].is_none();
  const Text* separator = has_separator ? &given.need_text(0) : nullptr;
  if (separator != nullptr && separator->empty()) fail("empty separator");
  evaluator.charge_text(self.as_text().size());
  const std::int64_t most = given.integer(1, -1);
  std::vector<Text> parts =
      kRight ? rsplit(self.as_text(), separator, most) : split(self.as_text(), separator, most);
  evaluator.charge(parts.size());
  return texts(parts);
}

Value splitlines(Evaluator& evaluator, const Value& self, Arguments& arguments) {
  Given given("splitlines", arguments, {"keepends"});
  evaluator.charge_text(self.as_text().size());
  std::vector<Text> lines = split_lines(self.as_text(), given.truth(0, false));
  evaluator.charge(lines.size());
  return texts(lines);
}

template <bool kStart>
Value with_method(Evaluator& evaluator, const Value& self, Arguments& arguments) {
  Given given(kStart ? "startswith" : "endswith", arguments, {"prefix", "start", "end"}, 1);
  TextView text = self.as_text();
  Text part;
  if (given.has(1) || given.has(2)) {
    evaluator.charge_text(text.size());
    for (std::size_t place : slice_places(text.size(), given.has(1) ? given[1] : Value::none(),
                                          given.has(2) ? given[2] : Value::none(), Value::none())) {
      part += text[place];
    }
    text = part;
  }
  auto fits = [&](const Value& what) {
    if (!what.is_text()) fail("startswith and endswith take texts, not {}", what.type_name());
    evaluator.charge(what.extent().size);
    return kStart ? starts_with(text, what.as_text()) : ends_with(text, what.as_text());
  };
  if (!given[0].is(Value::Kind::kTuple)) return Value::boolean(fits(given[0]));
  const Values& all = given[0].items();
  return Value::boolean(std::any_of(all.begin(), all.end(), fits));
}

Value replace_method(Evaluator& evaluator, const Value& self, Arguments& arguments) {
  Given given("replace", arguments, {"old", "new", "count"}, 2);
  const Text& text = self.as_text();
  const Text &from = given.need_text(0), &to = given.need_text(1);
  evaluator.charge_text(text.size() +
                        (text.size() / std::max<std::size_t>(from.size(), 1) + 1) * to.size());
  return Value::text(replace(text, from, to, given.integer(2, -1)));
}

template <bool kLast, bool kMustBe>
Value find_method(Evaluator& evaluator, const Value& self, Arguments& arguments) {
  Given given("find", arguments, {"sub", "start"}, 1);
  evaluator.charge(self.as_text().size() / 8);
  const auto size = static_cast<std::int64_t>(self.as_text().size());
  std::int64_t from = given.integer(1, 0);
  if (from < 0) from = std::max<std::int64_t>(from + size, 0);
  if (kLast && from > 0) fail("rfind with a start is not supported");
  std::size_t at =
      kLast ? rfind_in(self.as_text(), given.need_text(0))
            : find_in(self.as_text(), given.need_text(0), static_cast<std::size_t>(from));
  if (at == TextView::npos) {
    if (kMustBe) fail("substring not found");
    return Value::integer(-1);
  }
  return Value::integer(static_cast<std::int64_t>(at));
}

Value count_method(Evaluator& evaluator, const Value& self, Arguments& arguments) {
  Given given("count", arguments, {"sub"}, 1);
  const Text& what = given.need_text(0);
  evaluator.charge(self.as_text().size() / 8);
  if (what.empty()) return Value::integer(static_cast<std::int64_t>(self.as_text().size()) + 1);
  std::int64_t count = 0;
  for (std::size_t at = 0; (at = find_in(self.as_text(), what, at)) != TextView::npos;
       at += what.size()) {
    ++count;
  }
  return Value::integer(count);
}

template <Text (*kMap)(TextView)>
Value map_method(Evaluator& evaluator, const Value& self, Arguments& arguments) {
  Given("a text's method", arguments, {});
  evaluator.charge_text(self.as_text().size());
  return Value::text(kMap(self.as_text()));
}

Text title(TextView text) {
  Text out;
  bool in_word = false;
  for (char32_t c : text) {
    out += in_word ? lower({&c, 1}) : capitalize({&c, 1});
    in_word = is_alpha(c);
  }
  return out;
}

Value join_method(Evaluator& evaluator, const Value& self, Arguments& arguments) {
  Given given("join", arguments, {"iterable"}, 1);
  Text out;
  bool is_first = true;
  for (const Value& item : to_items(given[0])) {
    if (!item.is_text()) fail("join takes texts, not {}", item.type_name());
    if (!std::exchange(is_first, false)) out += self.as_text();
    out += item.as_text();
    evaluator.charge_text(item.as_text().size() + self.as_text().size());
  }
  return Value::text(std::move(out));
}

template <bool kPrefix>
Value remove_method(Evaluator& evaluator, const Value& self, Arguments& arguments) {
  Given given("removeprefix", arguments, {"text"}, 1);
  TextView text = self.as_text();
  const Text& what = given.need_text(0);
  evaluator.charge_text(text.size());
  bool has = kPrefix ? starts_with(text, what) : ends_with(text, what);
  if (has && kPrefix) text.remove_prefix(what.size());
  if (has && !kPrefix) text.remove_suffix(what.size());
  return Value::text(Text(text));
}

template <bool kLast>
Value partition(Evaluator& evaluator, const Value& self, Arguments& arguments) {
  Given given("partition", arguments, {"sep"}, 1);
  const Text& text = self.as_text();
  const Text& separator = given.need_text(0);
  if (separator.empty()) fail("empty separator");
  evaluator.charge_text(text.size());
  std::size_t at = kLast ? rfind_in(text, separator) : find_in(text, separator);
  std::array<Text, 3> parts;
  if (at == Text::npos) {
    parts[kLast ? 2 : 0] = text;
  } else {
    parts = {text.substr(0, at), text.substr(at, separator.size()),
             text.substr(at + separator.size())};
  }
  return Value::tuple({Value::text(parts[0]), Value::text(parts[1]), Value::text(parts[2])});
}

template <bool (*kIs)(char32_t)>
Value all_method(Evaluator& evaluator, const Value& self, Arguments& arguments) {
  Given("a text's method", arguments, {});
  evaluator.charge(self.extent().size);
  const Text& text = self.as_text();
  return Value::boolean(!text.empty() && std::all_of(text.begin(), text.end(), kIs));
}
bool is_ascii_digit(char32_t c) { return plain(c) >= U'0' && plain(c) <= U'9'; }
bool is_alnum(char32_t c) { return is_alpha(c) || is_ascii_digit(c); }

// '{}'.format(...): places and names, without formats behind a colon.
Value format_method(Evaluator& evaluator, const Value& self, Arguments& arguments) {
  const Text& text = self.as_text();
  Text out;
  std::size_t next = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char32_t c = plain(text[i]);
    const bool is_double = i + 1 < text.size() && plain(text[i + 1]) == c;
    if (c != U'{' && c != U'}') {
      out += text[i];
    } else if (is_double) {
      out += text[i++];
    } else if (c == U'}') {
      fail("Single '}}' encountered in format string");
    } else {
      std::size_t end = find_in(text, U"}", i);
      if (end == TextView::npos) fail("expected '}}' before end of string");
      std::string name = to_utf8(TextView(text).substr(i + 1, end - i - 1));
      i = end;
      const Value* value = nullptr;
      bool is_place =
          std::all_of(name.begin(), name.end(), [](char d) { return d >= '0' && d <= '9'; });
      if (is_place && name.size() < 6) {
        std::size_t place = name.empty() ? next++ : std::stoul(name);
        if (place < arguments.positional.size()) value = &arguments.positional[place];
      } else {
        for (const auto& [own, held] : arguments.named) {
          if (own == name) value = &held;
        }
      }
      if (value == nullptr) fail("format: nothing is given for '{{{}}}'", name.substr(0, 100));
      out += charged_str(evaluator, *value);
    }
  }
  evaluator.charge_text(text.size());
  return Value::text(std::move(out));
}

constexpr Named kTextMethods[] = {
    {"strip", strip_method<true, true>},
    {"lstrip", strip_method<true, false>},
    {"rstrip", strip_method<false, true>},
    {"split", split_method<false>},
    {"rsplit", split_method<true>},
    {"splitlines", splitlines},
    {"startswith", with_method<true>},
    {"endswith", with_method<false>},
    {"replace", replace_method},
    {"find", find_method<false, false>},
    {"rfind", find_method<true, false>},
    {"index", find_method<false, true>},
    {"rindex", find_method<true, true>},
    {"count", count_method},
    {"upper", map_method<upper>},
    {"lower", map_method<lower>},
    {"capitalize", map_method<capitalize>},
    {"title", map_method<title>},
    {"join", join_method},
    {"removeprefix", remove_method<true>},
    {"removesuffix", remove_method<false>},
    {"partition", partition<false>},
    {"rpartition", partition<true>},
    {"isspace", all_method<is_space>},
    {"isalpha", all_method<is_alpha>},
    {"isdigit", all_method<is_ascii_digit>},
    {"isalnum", all_method<is_alnum>},
    {"format", format_method},
};
constexpr const char* kOtherTextMethods[] = {
    "casefold",     "center",  "encode",    "expandtabs",  "format_map", "isascii", "isdecimal",
    "isidentifier", "islower", "isnumeric", "isprintable", "istitle",    "isupper", "ljust",
    "maketrans",    "rjust",   "swapcase",  "translate",   "zfill"};

Value get(Evaluator& evaluator, const Value& self, Arguments& arguments) {
  Given given("get", arguments, {"key", "default"}, 1);
  evaluator.charge(given[0].extent().size);
  if (const Value* found = self.as_dict().find(given[0])) return *found;
  return given.has(1) ? given[1] : Value::none();
}

enum class Part { kKeys, kValues, kItems };
template <Part kPart>
Value parts_of_dict(Evaluator& evaluator, const Value& self, Arguments& arguments) {
  Given("a dict's method", arguments, {});
  Values out;
  for (const auto& [key, value] : self.as_dict().items) {
    if (kPart == Part::kKeys) out.push_back(key);
    if (kPart == Part::kValues) out.push_back(value);
    if (kPart == Part::kItems) out.push_back(Value::tuple({key, value}));
  }
  evaluator.charge(out.size());
  return Value::list(std::move(out));
}

Value copy(Evaluator& evaluator, const Value& self, Arguments& arguments) {
  Given("copy", arguments, {});
  evaluator.charge(self.is_sequence() ? self.items().size() : self.as_dict().items.size());
  return self;  // nothing changes it
}

constexpr Named kDictMethods[] = {
    {"get", get},
    {"keys", parts_of_dict<Part::kKeys>},
    {"values", parts_of_dict<Part::kValues>},
    {"items", parts_of_dict<Part::kItems>},
    {"copy", copy},
};
constexpr const char* kOtherDictMethods[] = {"clear",   "fromkeys",   "pop",
                                             "popitem", "setdefault", "update"};

Value index_of(Evaluator& evaluator, const Value& self, Arguments& arguments) {
  Given given("index", arguments, {"value"}, 1);
  evaluator.charge(self.items().size());
  for (std::size_t i = 0; i < self.items().size(); ++i) {
    evaluator.charge_comparison(self.items()[i], given[0]);
    if (equal(self.items()[i], given[0])) return Value::integer(static_cast<std::int64_t>(i));
  }
  fail("the value is not in the list");
}
Value count_of(Evaluator& evaluator, const Value& self, Arguments& arguments) {
  Given given("count", arguments, {"value"}, 1);
  evaluator.charge(self.items().size());
  return Value::integer(
      std::count_if(self.items().begin(), self.items().end(), [&](const Value& item) {
        evaluator.charge_comparison(item, given[0]);
        return equal(item, given[0]);
      }));
}
constexpr Named kListMethods[] = {{"index", index_of}, {"count", count_of}, {"copy", copy}};
constexpr const char* kOtherListMethods[] = {"append", "clear",  "extend",  "insert",
                                             "pop",    "remove", "reverse", "sort"};

Value cycle(Evaluator&, const Value& self, Arguments& arguments) {
  if (arguments.positional.empty()) fail("no items for cycling given");
  return arguments.positional[self.as_loop().at % arguments.positional.size()];
}
Value changed(Evaluator& evaluator, const Value& self, Arguments& arguments) {
  Loop& loop = self.as_loop();
  bool same = loop.has_changed_before && loop.last_changed.size() == arguments.positional.size() &&
              std::equal(loop.last_changed.begin(), loop.last_changed.end(),
                         arguments.positional.begin(), [&](const Value& a, const Value& b) {
                           evaluator.charge_comparison(a, b);
                           return equal(a, b);
                         });
  if (same) return Value::boolean(false);
  // Loops, namespaces and macros would hold themselves.
  for (const Value& value : arguments.positional) {
    if (value.is(Value::Kind::kLoop) || value.is(Value::Kind::kFunction) ||
        value.extent().depth > 0) {
      fail("loop.changed of a {} is not supported", value.type_name());
    }
  }
  loop.last_changed = arguments.positional;
  loop.has_changed_before = true;
  return Value::boolean(true);
}

Value loop_attribute(const Value& self, const std::string& name) {
  const Loop& loop = self.as_loop();
  const auto at = static_cast<std::int64_t>(loop.at),
             size = static_cast<std::int64_t>(loop.items->size());
  if (name == "index") return Value::integer(at + 1);
  if (name == "index0") return Value::integer(at);
  if (name == "revindex") return Value::integer(size - at);
  if (name == "revindex0") return Value::integer(size - at - 1);
  if (name == "first") return Value::boolean(at == 0);
  if (name == "last") return Value::boolean(at + 1 == size);
  if (name == "length") return Value::integer(size);
  if (name == "depth") return Value::integer(1);
  if (name == "depth0") return Value::integer(0);
  if (name == "previtem") {
    return at > 0 ? (*loop.items)[loop.at - 1] : Value::undefined("there is no previous item");
  }
  if (name == "nextitem") {
    return at + 1 < size ? (*loop.items)[loop.at + 1] : Value::undefined("there is no next item");
  }
  return Value();
}

template <std::size_t kSize, std::size_t kOther>
Value bound(const Value& self, const std::string& name, const Named (&methods)[kSize],
            const char* const (&others)[kOther]) {
  for (const Named& one : methods) {
    if (name != one.name) continue;
    return Value::function(name,
                           [self, call = one.call](Evaluator& evaluator, Arguments& arguments) {
                             return call(evaluator, self, arguments);
                           });
  }
  if (std::find(std::begin(others), std::end(others), name) == std::end(others)) return Value();
  return Value::function(name, [name](Evaluator&, Arguments&) -> Value {
    fail("the method '{}' is not supported, or would change a value, which templates may not",
         name);
  });
}

// Of a safe text: what methods make of it is safe, and what they put into it is escaped.
Value safe_method(const Value& object, const std::string& name) {
  static constexpr const char* kNot[] = {"join", "format", "escape", "unescape", "striptags"};
  if (std::find(std::begin(kNot), std::end(kNot), name) != std::end(kNot)) {
    return Value::function(name, [name](Evaluator&, Arguments&) -> Value {
      fail("the method '{}' of a safe text is not supported", name);
    });
  }
  Value found = bound(object, name, kTextMethods, kOtherTextMethods);
  if (!found.is(Value::Kind::kFunction)) return found;
  return Value::function(name, [name, found](Evaluator& evaluator, Arguments& arguments) {
    if (name == "replace") {
      if (!arguments.named.empty() || arguments.positional.size() < 2) {
        fail("replace of a safe text takes its two texts in order");
      }
      Value& with = arguments.positional[1];
      if (with.is_text() && !with.is_safe()) with = Value::text(html_escaped(with.as_text()));
    }
    Value out = found.as_function().call(evaluator, arguments);
    if (out.is_text()) return Value::text(out.as_text(), true);
    if (!out.is_sequence()) return out;
    Values parts;
    for (const Value& part : out.items()) parts.push_back(Value::text(part.as_text(), true));
    return out.is(Value::Kind::kList) ? Value::list(std::move(parts))
                                      : Value::tuple(std::move(parts));
  });
}

}  // namespace

Value method(const Value& object, const std::string& name) {
  static constexpr Named kLoopMethods[] = {{"cycle", cycle}, {"changed", changed}};
  static constexpr const char* kNoOthers[] = {""};
  switch (object.kind()) {
    case Value::Kind::kText:
      if (object.is_safe()) return safe_method(object, name);
      return bound(object, name, kTextMethods, kOtherTextMethods);
    case Value::Kind::kDict:
      return bound(object, name, kDictMethods, kOtherDictMethods);
    case Value::Kind::kList:
      return bound(object, name, kListMethods, kOtherListMethods);
    case Value::Kind::kTuple:
      return bound(object, name, kListMethods, kNoOthers);
    case Value::Kind::kNamespace: {
      const Value* held = object.as_namespace().find(name);
      return held != nullptr ? *held : Value();
    }
    case Value::Kind::kLoop: {
      Value held = loop_attribute(object, name);
      return held.is_undefined() ? bound(object, name, kLoopMethods, kNoOthers) : held;
    }
    default:
      return Value();
  }
}

}  // namespace stretto::jinja
