// str(), repr() and JSON of values.
#include <algorithm>
#include <charconv>
#include <cmath>

#include "stretto/server/jinja/error.h"
#include "stretto/server/jinja/value.h"

namespace stretto::jinja {
namespace {

constexpr int kMostNamespaces = 20;  // in one another, when printed: one may hold itself

// Values may hold another one many times, and those others likewise.
void check_size(std::size_t size, std::size_t most) {
  if (size > most) fail("prints more than {} characters", most);
}

struct Printing {
  Text out;
  std::size_t most;
};

void append_repr(Printing& to, const Value& value, int namespaces);

void append_items(Printing& to, const Values& items, int namespaces) {
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (i > 0) to.out += U", ";
    append_repr(to, items[i], namespaces);
  }
}

void append_repr(Printing& to, const Value& value, int namespaces) {
  using Kind = Value::Kind;
  Text& out = to.out;
  check_size(out.size(), to.most);
  switch (value.kind()) {
    case Kind::kUndefined:
      out += U"Undefined";
      return;
    case Kind::kNone:
      out += U"None";
      return;
    case Kind::kBool:
      out += value.as_int() != 0 ? U"True" : U"False";
      return;
    case Kind::kInt:
      out += to_text(std::to_string(value.as_int()));
      return;
    case Kind::kBigInt:
      out += to_text(value.note());
      return;
    case Kind::kFloat:
      out += to_text(float_repr(value.as_double()));
      return;
    case Kind::kText:
      if (value.is_safe()) out += U"Markup(";
      out += repr(value.as_text());
      if (value.is_safe()) out += U')';
      return;
    case Kind::kList:
      out += U'[';
      append_items(to, value.items(), namespaces);
      out += U']';
      return;
    case Kind::kTuple:
      out += U'(';
      append_items(to, value.items(), namespaces);
      out += value.items().size() == 1 ? U",)" : U")";
      return;
    case Kind::kDict: {
      out += U'{';
      bool is_first = true;
      for (const auto& [key, held] : value.as_dict().items) {
        if (!std::exchange(is_first, false)) out += U", ";
        append_repr(to, key, namespaces);
        out += U": ";
        append_repr(to, held, namespaces);
      }
      out += U'}';
      return;
    }
    case Kind::kNamespace: {
      if (namespaces >= kMostNamespaces) fail("namespaces in namespaces cannot be printed");
      out += U"<Namespace {";
      bool is_first = true;
      for (const auto& [name, held] : value.as_namespace().attributes) {
        if (!std::exchange(is_first, false)) out += U", ";
        out += repr(to_text(name));
        out += U": ";
        append_repr(to, held, namespaces + 1);
      }
      out += U"}>";
      return;
    }
    case Kind::kLoop: {
      const Loop& loop = value.as_loop();
      out += to_text(fmt::format("<LoopContext {}/{}>", loop.at + 1, loop.items->size()));
      return;
    }
    case Kind::kGenerator:
    case Kind::kFunction:
      fail("a {} cannot be printed", value.type_name());
  }
}

class JsonWriter {
 public:
  JsonWriter(const JsonStyle& style, std::size_t most) : style_(style), most_(most) {}

  Text write(const Value& value) {
    append(value, 0);
    return std::move(out_);
  }

 private:
  void append(const Value& value, int level) {
    using Kind = Value::Kind;
    check_size(out_.size(), most_);
    switch (value.kind()) {
      case Kind::kNone:
        out_ += U"null";
        return;
      case Kind::kBool:
        out_ += value.as_int() != 0 ? U"true" : U"false";
        return;
      case Kind::kInt:
      case Kind::kBigInt:
      case Kind::kFloat:
        out_ += to_text(number(value));
        return;
      case Kind::kText:
        append_json(out_, value.as_text(), style_.ensure_ascii);
        return;
      case Kind::kList:
      case Kind::kTuple:
        open(U'[');
        for (const Value& item : value.items()) {
          next(level);
          append(item, level + 1);
        }
        close(U']', level);
        return;
      case Kind::kDict:
        append_dict(value.as_dict(), level);
        return;
      default:
        fail("Object of type {} is not JSON serializable", value.type_name());
    }
  }

  void append_dict(const Dict& dict, int level) {
    std::vector<const std::pair<Value, Value>*> items;
    for (const auto& item : dict.items) items.push_back(&item);
    if (style_.sort_keys) {
      std::stable_sort(items.begin(), items.end(),
                       [](const auto* a, const auto* b) { return less(a->first, b->first); });
    }
    open(U'{');
    for (const auto* item : items) {
      next(level);
      append_key(item->first);
      out_ += style_.key_separator;
      append(item->second, level + 1);
    }
    close(U'}', level);
  }

  void append_key(const Value& key) {
    if (key.is_text()) return append_json(out_, key.as_text(), style_.ensure_ascii);
    if (key.is_sequence()) fail("keys must be str, int, float, bool or None, not tuple");
    out_ += U'"';
    append(key, 0);
    out_ += U'"';
  }

  static std::string number(const Value& value) {
    if (value.is(Value::Kind::kBigInt)) return value.note();
    if (value.is_integral()) return std::to_string(value.as_int());
    double d = value.as_double();
    if (std::isnan(d)) return "NaN";
    if (std::isinf(d)) return d > 0 ? "Infinity" : "-Infinity";
    return float_repr(d);
  }

  void open(char32_t bracket) {
    out_ += bracket;
    is_empty_ = true;
  }
  void next(int level) {
    if (!std::exchange(is_empty_, false)) out_ += style_.item_separator;
    if (style_.is_indented) new_line(level + 1);
  }
  void close(char32_t bracket, int level) {
    if (style_.is_indented && !is_empty_) new_line(level);
    out_ += bracket;
    is_empty_ = false;
  }
  void new_line(int level) {
    out_ += U'\n';
    for (int i = 0; i < level; ++i) {
      out_ += style_.indent;
      check_size(out_.size(), most_);
    }
  }

  const JsonStyle& style_;
  const std::size_t most_;
  Text out_;
  bool is_empty_ = false;
};

}  // namespace

std::string float_repr(double d) {
  if (std::isnan(d)) return "nan";
  if (std::isinf(d)) return d > 0 ? "inf" : "-inf";
  char buffer[64];
  // The shortest digits that read back as the same; Python writes exponents below -4 and from 16.
  auto [end, error] =
      std::to_chars(buffer, buffer + sizeof buffer, d, std::chars_format::scientific);
  std::string digits(buffer, end);
  std::size_t e = digits.find('e');
  int exponent = std::stoi(digits.substr(e + 1));
  if (exponent < -4 || exponent >= 16) {
    std::string mantissa = digits.substr(0, e);
    return fmt::format("{}e{}{:02d}", mantissa, exponent < 0 ? '-' : '+', std::abs(exponent));
  }
  auto [fixed_end, fixed_error] =
      std::to_chars(buffer, buffer + sizeof buffer, d, std::chars_format::fixed);
  std::string fixed(buffer, fixed_end);
  return fixed.find('.') == std::string::npos ? fixed + ".0" : fixed;
}

Text to_str(const Value& value, std::size_t most) {
  if (value.is_text()) return value.as_text();
  if (value.is_undefined()) return {};
  return to_repr(value, most);
}

std::string to_name(const Value& value) {
  constexpr std::size_t kMost = 4096;
  const Text text = to_str(value, kMost);
  if (text.size() > kMost) fail("a name has more than {} characters", kMost);
  return to_utf8(text);
}

Text to_repr(const Value& value, std::size_t most) {
  check_size(value.extent().size, most);  // so much at least
  Printing to{.out = {}, .most = most};
  append_repr(to, value, 0);
  return std::move(to.out);
}

Text to_json(const Value& value, const JsonStyle& style, std::size_t most) {
  check_size(value.extent().size, most);
  return JsonWriter(style, most).write(value);
}

}  // namespace stretto::jinja
