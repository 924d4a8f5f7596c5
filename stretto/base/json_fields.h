// Typed, range-checked access to the fields of one JSON object from a file or request. Every
// refusal is a UserError of the form "config.json: hidden_size: need a whole number from 1 to
// 1048576, got -3". A field that is null counts as absent, as in Hugging Face files.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "stretto/base/json_fwd.h"

namespace stretto {

class JsonFields {
 public:
  // `object` must outlive this reader; UserError when it is not an object. `where` names it in
  // errors; "": the field's name says enough.
  JsonFields(const Json& object, std::string where);

  const std::string& where() const { return where_; }
  bool has(const char* field) const { return find(field) != nullptr; }
  // Also where it is null, which some files tell from absence.
  bool names(const char* field) const;
  // nullptr when absent or null.
  const Json* find(const char* field) const;

  // Required fields; bounds are inclusive.
  std::int64_t integer(const char* field, std::int64_t min, std::int64_t max) const;
  double number(const char* field, double min, double max) const;
  std::string text(const char* field) const;

  // Optional fields: nullopt when absent, UserError when present and wrong.
  std::optional<std::int64_t> optional_integer(const char* field, std::int64_t min,
                                               std::int64_t max) const;
  std::optional<double> optional_number(const char* field, double min, double max) const;
  std::optional<bool> optional_boolean(const char* field) const;
  std::optional<std::string> optional_text(const char* field) const;
  // A single number counts as a list of one; absent is an empty list.
  std::vector<std::int64_t> integers(const char* field, std::int64_t min, std::int64_t max) const;
  // UserError unless absent or an array of at most `max_size` strings.
  std::optional<std::vector<std::string>> optional_texts(const char* field,
                                                         std::size_t max_size) const;

  // Throws UserError "<where>: <field>: <reason>", without a place "<field>: <reason>".
  [[noreturn]] void fail(const char* field, const std::string& reason) const;

 private:
  const Json& required(const char* field) const;
  std::int64_t to_integer(const char* field, const Json& value, std::int64_t min,
                          std::int64_t max) const;
  double to_number(const char* field, const Json& value, double min, double max) const;
  std::string to_text(const char* field, const Json& value) const;

  const Json& object_;
  std::string where_;
};

// A value as it may be quoted in an error: printable, cut to one short line.
std::string quote_json(const Json& value);

}  // namespace stretto
