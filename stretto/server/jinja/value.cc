#include "stretto/server/jinja/value.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>

#include "stretto/base/secret_hash.h"
#include "stretto/server/jinja/error.h"

namespace stretto::jinja {
namespace {

constexpr int kMostDepth = 200;  // of containers in containers: all that follows them recurses

constexpr std::size_t kMostSize = std::size_t{1} << 48;  // what is more counts as so much
constexpr std::size_t kMostOfKey = std::size_t{1} << 16;

Extent extent_of(const Values& items) {
  Extent out;
  for (const Value& item : items) out.add(item);
  return out;
}

void add_hash(const Value& key, SecretHash& out) {
  using Kind = Value::Kind;
  switch (key.kind()) {
    case Kind::kUndefined:
    case Kind::kNone:
      return out.add(1);
    case Kind::kBool:
    case Kind::kInt:
    case Kind::kFloat: {
      const double number = key.as_double();  // the same of what is equal
      return out.add(number == 0 ? 0 : std::bit_cast<std::uint64_t>(number));
    }
    case Kind::kBigInt:
      for (char c : key.note()) out.add(static_cast<unsigned char>(c));
      return;
    case Kind::kText:
      for (char32_t c : key.as_text()) out.add(plain(c));
      return;
    case Kind::kTuple:
      if (key.extent().size > kMostOfKey) fail("a key has more than {} values", kMostOfKey);
      out.add(key.items().size());
      for (const Value& item : key.items()) add_hash(item, out);
      return;
    case Kind::kNamespace:
    case Kind::kLoop:
    case Kind::kFunction:
    case Kind::kGenerator:
      return out.add(reinterpret_cast<std::uintptr_t>(key.identity()));
    default:
      fail("unhashable type: '{}'", key.type_name());
  }
}

std::size_t hash_of(const Value& key) {
  SecretHash out;
  add_hash(key, out);
  return out.value();
}

}  // namespace

Value Value::undefined(std::string what) {
  Value out;
  out.object_ = std::make_shared<std::string>(std::move(what));
  return out;
}

Value Value::none() {
  Value out;
  out.kind_ = Kind::kNone;
  return out;
}

Value Value::boolean(bool b) {
  Value out;
  out.kind_ = Kind::kBool;
  out.int_ = b ? 1 : 0;
  return out;
}

Value Value::integer(std::int64_t i) {
  Value out;
  out.kind_ = Kind::kInt;
  out.int_ = i;
  return out;
}

Value Value::big_integer(std::string digits) {
  Value out;
  out.kind_ = Kind::kBigInt;
  out.object_ = std::make_shared<std::string>(std::move(digits));
  return out;
}

Value Value::number(double d) {
  Value out;
  out.kind_ = Kind::kFloat;
  out.float_ = d;
  return out;
}

Value Value::text(Text text, bool is_safe) {
  Value out;
  out.kind_ = Kind::kText;
  out.int_ = is_safe ? 1 : 0;
  out.object_ = std::make_shared<Text>(std::move(text));
  return out;
}

Value Value::list(Values items) {
  Value out;
  const Extent extent = extent_of(items);
  out.kind_ = Kind::kList;
  out.object_ = std::make_shared<Sequence>(Sequence{std::move(items), extent});
  return out;
}

Value Value::tuple(Values items) {
  Value out = list(std::move(items));
  out.kind_ = Kind::kTuple;
  return out;
}

Value Value::dict(Dict dict) {
  Value out;
  out.kind_ = Kind::kDict;
  out.object_ = std::make_shared<Dict>(std::move(dict));
  return out;
}

Value Value::generator(Values items) {
  const Extent extent = extent_of(items);
  Value out;
  out.kind_ = Kind::kGenerator;
  out.object_ = std::make_shared<Generator>(Generator{std::move(items), extent});
  return out;
}

Value Value::of(std::shared_ptr<Namespace> space) {
  Value out;
  out.kind_ = Kind::kNamespace;
  out.object_ = std::move(space);
  return out;
}

Value Value::of(std::shared_ptr<Loop> loop) {
  Value out;
  out.kind_ = Kind::kLoop;
  out.object_ = std::move(loop);
  return out;
}

Value Value::function(std::string name, std::function<Value(Evaluator&, Arguments&)> call) {
  Value out;
  out.kind_ = Kind::kFunction;
  out.object_ = std::make_shared<Callable>(Callable{std::move(name), std::move(call)});
  return out;
}

std::string Value::note() const {
  return object_ ? *static_cast<const std::string*>(object_.get()) : "a value is undefined";
}

bool Value::truth() const {
  switch (kind_) {
    case Kind::kUndefined:
    case Kind::kNone:
      return false;
    case Kind::kBool:
    case Kind::kInt:
      return int_ != 0;
    case Kind::kFloat:
      return float_ != 0;
    case Kind::kText:
      return !as_text().empty();
    case Kind::kList:
    case Kind::kTuple:
      return !items().empty();
    case Kind::kDict:
      return !as_dict().items.empty();
    default:
      return true;
  }
}

Extent Value::extent() const {
  switch (kind_) {
    case Kind::kList:
    case Kind::kTuple:
      return static_cast<const Sequence*>(object_.get())->extent;
    case Kind::kDict:
      return as_dict().extent;
    case Kind::kGenerator:
      return as_generator().extent;
    case Kind::kText:
      return {.depth = 0, .size = 1 + as_text().size() / 16};
    default:
      return {.depth = 0, .size = 1};
  }
}

void Extent::add(const Value& item) {
  const Extent its = item.extent();
  depth = std::max(depth, 1 + its.depth);
  size = std::min(size + its.size, kMostSize);
  if (depth > kMostDepth) fail("lists and dicts are nested deeper than {}", kMostDepth);
}

const char* Value::type_name() const {
  switch (kind_) {
    case Kind::kUndefined:
      return "Undefined";
    case Kind::kNone:
      return "NoneType";
    case Kind::kBool:
      return "bool";
    case Kind::kInt:
    case Kind::kBigInt:
      return "int";
    case Kind::kFloat:
      return "float";
    case Kind::kText:
      return "str";
    case Kind::kList:
      return "list";
    case Kind::kTuple:
      return "tuple";
    case Kind::kDict:
      return "dict";
    case Kind::kNamespace:
      return "Namespace";
    case Kind::kGenerator:
      return "generator";
    case Kind::kLoop:
      return "LoopContext";
    case Kind::kFunction:
      return "function";
  }
  return "";
}

void Dict::set(const Value& key, Value value) {
  const std::size_t hash = hash_of(key);
  extent.add(key);
  extent.add(value);
  auto [at, end] = index_.equal_range(hash);
  for (; at != end; ++at) {
    if (!equal(items[at->second].first, key)) continue;
    items[at->second].second = std::move(value);
    return;
  }
  index_.emplace(hash, items.size());
  items.emplace_back(key, std::move(value));
}

const Value* Dict::find(const Value& key) const {
  auto [at, end] = index_.equal_range(hash_of(key));
  for (; at != end; ++at) {
    if (equal(items[at->second].first, key)) return &items[at->second].second;
  }
  return nullptr;
}

const Value* Dict::find(std::string_view utf8) const { return find(Value::text(utf8)); }

void Namespace::set(const std::string& name, Value value) {
  for (auto& [own, held] : attributes) {
    if (own == name) {
      held = std::move(value);
      return;
    }
  }
  attributes.emplace_back(name, std::move(value));
}

const Value* Namespace::find(const std::string& name) const {
  for (const auto& [own, held] : attributes) {
    if (own == name) return &held;
  }
  return nullptr;
}

bool equal(const Value& a, const Value& b) {
  using Kind = Value::Kind;
  if (a.is_number() && b.is_number()) {
    if (a.is_integral() && b.is_integral()) return a.as_int() == b.as_int();
    return a.as_double() == b.as_double();
  }
  if (a.kind() != b.kind()) return false;
  switch (a.kind()) {
    case Kind::kUndefined:
    case Kind::kNone:
      return true;
    case Kind::kBigInt:
      return a.note() == b.note();
    case Kind::kText:
      return equal(TextView(a.as_text()), TextView(b.as_text()));
    case Kind::kList:
    case Kind::kTuple:
      return a.items().size() == b.items().size() &&
             std::equal(a.items().begin(), a.items().end(), b.items().begin(),
                        [](const Value& x, const Value& y) { return equal(x, y); });
    case Kind::kDict: {
      const Dict& left = a.as_dict();
      const Dict& right = b.as_dict();
      if (left.items.size() != right.items.size()) return false;
      return std::all_of(left.items.begin(), left.items.end(), [&](const auto& item) {
        const Value* other = right.find(item.first);
        return other != nullptr && equal(item.second, *other);
      });
    }
    default:
      return a.identity() == b.identity();
  }
}

bool less(const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) {
    if (a.is_integral() && b.is_integral()) return a.as_int() < b.as_int();
    return a.as_double() < b.as_double();
  }
  if (a.is_text() && b.is_text()) return compare(a.as_text(), b.as_text()) < 0;
  if (a.is_sequence() && a.kind() == b.kind()) {
    const Values &left = a.items(), &right = b.items();
    for (std::size_t i = 0; i < std::min(left.size(), right.size()); ++i) {
      if (!equal(left[i], right[i])) return less(left[i], right[i]);
    }
    return left.size() < right.size();
  }
  for (const Value* side : {&a, &b}) {
    if (side->is_undefined()) fail("{}", side->note());
  }
  fail("'<' not supported between instances of '{}' and '{}'", a.type_name(), b.type_name());
}

std::size_t comparison_cost(const Value& a, const Value& b) {
  return std::min(a.extent().size, b.extent().size);
}

Values to_items(const Value& value) {
  using Kind = Value::Kind;
  Values out;
  switch (value.kind()) {
    case Kind::kUndefined:
      return out;
    case Kind::kText:
      for (char32_t c : value.as_text()) out.push_back(Value::text(Text(1, c)));
      return out;
    case Kind::kList:
    case Kind::kTuple:
      return value.items();
    case Kind::kDict:
      for (const auto& [key, held] : value.as_dict().items) out.push_back(key);
      return out;
    case Kind::kGenerator: {
      Generator& generator = value.as_generator();
      out.assign(generator.items.begin() + static_cast<std::ptrdiff_t>(generator.next),
                 generator.items.end());
      generator.next = generator.items.size();
      return out;
    }
    case Kind::kLoop:
      fail("going over 'loop' itself is not supported");
    default:
      fail("'{}' object is not iterable", value.type_name());
  }
}

}  // namespace stretto::jinja
