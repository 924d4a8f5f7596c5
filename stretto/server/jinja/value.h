// Values of templates: Python's, as far as templates meet them. Text, lists and dicts never change
// once made; a namespace does.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "stretto/server/jinja/text.h"

namespace stretto::jinja {

class Evaluator;
class Value;
struct Dict;
struct Namespace;
struct Loop;

using Values = std::vector<Value>;

struct Arguments {
  Values positional;
  std::vector<std::pair<std::string, Value>> named;
};

// A function, a method that knows its object, or a macro.
struct Callable {
  std::string name;
  std::function<Value(Evaluator&, Arguments&)> call;
};

// How deep containers are in a container, and how much there is in it: values, and characters of
// texts by the dozen, the same one each time that it is met. Going over all of it takes so long.
struct Extent {
  int depth = 1;
  std::size_t size = 1;

  // TemplateError where they are nested too deep.
  void add(const Value& item);
};

// Items that are gone over once, as Python's generators.
struct Generator {
  Values items;
  Extent extent;
  std::size_t next = 0;
};

struct Sequence {
  Values items;
  Extent extent;
};

class Value {
 public:
  enum class Kind : std::uint8_t {
    kUndefined,
    kNone,
    kBool,
    kInt,
    kBigInt,  // outside 64 bits: its digits, to be printed and compared
    kFloat,
    kText,
    kList,
    kTuple,
    kDict,
    kNamespace,
    kGenerator,
    kLoop,
    kFunction,
  };

  Value() = default;  // undefined, without a name
  static Value undefined(std::string what);
  static Value none();
  static Value boolean(bool b);
  static Value integer(std::int64_t i);
  static Value big_integer(std::string digits);
  static Value number(double d);
  // `is_safe`: Python's Markup, which `safe` and `escape` make: texts that are added to it are
  // escaped.
  static Value text(Text text, bool is_safe = false);
  static Value text(std::string_view utf8) { return text(to_text(utf8)); }
  // TemplateError where they are nested too deep.
  static Value list(Values items);
  static Value tuple(Values items);
  static Value dict(Dict dict);
  static Value generator(Values items);
  static Value of(std::shared_ptr<Namespace> space);
  static Value of(std::shared_ptr<Loop> loop);
  static Value function(std::string name, std::function<Value(Evaluator&, Arguments&)> call);

  Kind kind() const { return kind_; }
  bool is(Kind kind) const { return kind_ == kind; }
  bool is_undefined() const { return kind_ == Kind::kUndefined; }
  bool is_none() const { return kind_ == Kind::kNone; }
  bool is_text() const { return kind_ == Kind::kText; }
  bool is_safe() const { return is_text() && int_ != 0; }
  bool is_integral() const { return kind_ == Kind::kInt || kind_ == Kind::kBool; }
  bool is_number() const { return is_integral() || kind_ == Kind::kFloat; }
  bool is_sequence() const { return kind_ == Kind::kList || kind_ == Kind::kTuple; }

  std::int64_t as_int() const { return int_; }  // of bool and int
  double as_double() const { return kind_ == Kind::kFloat ? float_ : static_cast<double>(int_); }
  const Text& as_text() const { return *static_cast<const Text*>(object_.get()); }
  const Values& items() const { return static_cast<const Sequence*>(object_.get())->items; }
  const Dict& as_dict() const { return *static_cast<const Dict*>(object_.get()); }
  Namespace& as_namespace() const { return *static_cast<Namespace*>(object_.get()); }
  Generator& as_generator() const { return *static_cast<Generator*>(object_.get()); }
  Loop& as_loop() const { return *static_cast<Loop*>(object_.get()); }
  const Callable& as_function() const { return *static_cast<const Callable*>(object_.get()); }
  // Of a big integer; of undefined, what is missing: "'x' is undefined".
  std::string note() const;
  const void* identity() const { return object_.get(); }

  bool truth() const;
  Extent extent() const;
  // "str", "int", "NoneType", ...
  const char* type_name() const;

 private:
  Kind kind_ = Kind::kUndefined;
  union {
    std::int64_t int_ = 0;  // of a text: whether it is safe
    double float_;
  };
  std::shared_ptr<void> object_;
};

// In the order in which they were put in.
struct Dict {
  std::vector<std::pair<Value, Value>> items;
  Extent extent;

  // TemplateError for keys that Python cannot hash, and for tuples of very many values.
  void set(const Value& key, Value value);
  const Value* find(const Value& key) const;
  const Value* find(std::string_view utf8) const;

 private:
  std::unordered_multimap<std::size_t, std::size_t> index_;
};

struct Namespace {
  std::vector<std::pair<std::string, Value>> attributes;

  void set(const std::string& name, Value value);
  const Value* find(const std::string& name) const;
};

// `loop` inside a for.
struct Loop {
  const Values* items = nullptr;
  std::size_t at = 0;
  Values last_changed;
  bool has_changed_before = false;
};

// str() and repr(). TemplateError where they make more than about `most` characters; a text is
// itself whatever its size.
Text to_str(const Value& value, std::size_t most);
Text to_repr(const Value& value, std::size_t most);
// str() of what names an attribute, a filter or a test; TemplateError beyond 4096 characters.
std::string to_name(const Value& value);
// Of a float, as Python prints it.
std::string float_repr(double d);

// Both take steps as comparison_cost() says.
bool equal(const Value& a, const Value& b);
// a < b; TemplateError where Python has no order.
bool less(const Value& a, const Value& b);
std::size_t comparison_cost(const Value& a, const Value& b);
// What a for goes over; a generator is used up. TemplateError for what cannot be gone over.
Values to_items(const Value& value);

struct JsonStyle {
  bool ensure_ascii = false, sort_keys = false;
  bool is_indented = false;
  Text indent;
  Text item_separator = U", ", key_separator = U": ";
};
// json.dumps(). TemplateError for what it refuses, and as above.
Text to_json(const Value& value, const JsonStyle& style, std::size_t most);

// JSON text as json.loads() reads it, key order kept, all text marked as the user's. `text` must
// have passed parse_json() of base/json.h.
Value from_json(std::string_view text);

}  // namespace stretto::jinja
