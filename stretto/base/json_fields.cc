#include "stretto/base/json_fields.h"

#include <fmt/format.h>

#include <limits>
#include <utility>

#include "stretto/base/errors.h"
#include "stretto/base/json.h"
#include "stretto/base/printable.h"

namespace stretto {
namespace {

std::string place(const std::string& where) { return where.empty() ? "" : where + ": "; }

}  // namespace

std::string quote_json(const Json& value) {
  // Containers are named, not printed: a hostile one may be large.
  if (value.is_object()) return "an object";
  if (value.is_array()) return fmt::format("an array of {}", value.size());
  if (value.is_string()) return "'" + printable(value.get_ref<const std::string&>()) + "'";
  return value.dump();
}

JsonFields::JsonFields(const Json& object, std::string where)
    : object_(object), where_(std::move(where)) {
  if (!object_.is_object()) {
    throw UserError(
        fmt::format("{}need a JSON object, got {}", place(where_), quote_json(object_)));
  }
}

void JsonFields::fail(const char* field, const std::string& reason) const {
  throw UserError(fmt::format("{}{}: {}", place(where_), field, reason));
}

bool JsonFields::names(const char* field) const { return object_.contains(field); }

const Json* JsonFields::find(const char* field) const {
  auto found = object_.find(field);
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

const Json& JsonFields::required(const char* field) const {
  const Json* value = find(field);
  if (value == nullptr) fail(field, "missing");
  return *value;
}

std::int64_t JsonFields::to_integer(const char* field, const Json& value, std::int64_t min,
                                    std::int64_t max) const {
  constexpr auto kMax = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  bool fits = value.is_number_integer() &&
              !(value.is_number_unsigned() && value.get<std::uint64_t>() > kMax);
  std::int64_t number = fits ? value.get<std::int64_t>() : 0;
  if (!fits || number < min || number > max) {
    fail(field,
         fmt::format("need a whole number from {} to {}, got {}", min, max, quote_json(value)));
  }
  return number;
}

double JsonFields::to_number(const char* field, const Json& value, double min, double max) const {
  double number = value.is_number() ? value.get<double>() : 0;
  if (!value.is_number() || !(number >= min && number <= max)) {
    fail(field, fmt::format("need a number from {} to {}, got {}", min, max, quote_json(value)));
  }
  return number;
}

std::string JsonFields::to_text(const char* field, const Json& value) const {
  if (!value.is_string()) fail(field, fmt::format("need a string, got {}", quote_json(value)));
  return value.get<std::string>();
}

std::int64_t JsonFields::integer(const char* field, std::int64_t min, std::int64_t max) const {
  return to_integer(field, required(field), min, max);
}

double JsonFields::number(const char* field, double min, double max) const {
  return to_number(field, required(field), min, max);
}

std::string JsonFields::text(const char* field) const { return to_text(field, required(field)); }

std::optional<std::int64_t> JsonFields::optional_integer(const char* field, std::int64_t min,
                                                         std::int64_t max) const {
  const Json* value = find(field);
  if (value == nullptr) return std::nullopt;
  return to_integer(field, *value, min, max);
}

std::optional<double> JsonFields::optional_number(const char* field, double min, double max) const {
  const Json* value = find(field);
  if (value == nullptr) return std::nullopt;
  return to_number(field, *value, min, max);
}

std::optional<bool> JsonFields::optional_boolean(const char* field) const {
  const Json* value = find(field);
  if (value == nullptr) return std::nullopt;
  if (!value->is_boolean())
    fail(field, fmt::format("need true or false, got {}", quote_json(*value)));
  return value->get<bool>();
}

std::optional<std::string> JsonFields::optional_text(const char* field) const {
  const Json* value = find(field);
  if (value == nullptr) return std::nullopt;
  return to_text(field, *value);
}

std::vector<std::int64_t> JsonFields::integers(const char* field, std::int64_t min,
                                               std::int64_t max) const {
  const Json* value = find(field);
  if (value == nullptr) return {};
  if (!value->is_array()) return {to_integer(field, *value, min, max)};
  std::vector<std::int64_t> numbers;
  for (const Json& element : *value) numbers.push_back(to_integer(field, element, min, max));
  return numbers;
}

std::optional<std::vector<std::string>> JsonFields::optional_texts(const char* field,
                                                                   std::size_t max_size) const {
  const Json* value = find(field);
  if (value == nullptr) return std::nullopt;
  if (!value->is_array() || value->size() > max_size) {
    fail(field,
         fmt::format("need an array of at most {} strings, got {}", max_size, quote_json(*value)));
  }
  std::vector<std::string> texts;
  for (const Json& element : *value) texts.push_back(to_text(field, element));
  return texts;
}

}  // namespace stretto
