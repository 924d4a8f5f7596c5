// The fields of a config or a desc, listed once by its operator, fields_of(): their names, in the
// order of its text, and where they are. From the list come the text, "tile=128x256x64 compute=132
// gather=send across", by which configs and descs are told apart and choices are kept, the reading
// of that text, and of a desc what Python gives by name.
#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "stretto/base/dtype.h"

namespace stretto {

class NamedField {
 public:
  // Numbers. With `unless`, text leaves the field out where it is that.
  NamedField(const char* name, int& at, std::optional<int> unless = {});
  NamedField(const char* name, std::int64_t& at, std::optional<std::int64_t> unless = {});
  NamedField(const char* name, double& at, std::optional<double> unless = {});
  // "none", which text leaves out, or a number.
  NamedField(const char* name, std::optional<double>& at);
  // "across", or nothing.
  NamedField(const char* name, bool& at);
  // "f32"; "float32" is read, too.
  NamedField(const char* name, DType& at, std::optional<DType> unless = {});
  // The sizes of a tile, "128x256x64".
  NamedField(const char* name, std::vector<std::int64_t*> at,
             std::optional<std::int64_t> unless_all = {});
  // A word, by the enumeration's name().
  template <typename Enum>
  NamedField(const char* field, Enum& at, std::initializer_list<Enum> values,
             std::type_identity_t<std::optional<Enum>> unless = {})
      : NamedField(
            field, unless.has_value(),
            [&at, unless]() -> std::optional<std::string> {
              if (at == unless) return std::nullopt;
              return name_of(at);
            },
            [&at, values = std::vector<Enum>(values)](const std::string& word) {
              for (Enum value : values) {
                if (word != name_of(value)) continue;
                at = value;
                return true;
              }
              return false;
            }) {}

  // With other text than "name=value": "top {}"; of a flag, what is said where it is set.
  NamedField as(const char* form) const;
  // A flag that has text where it is not set, and none where it is.
  NamedField unless_set(const char* word) const;
  // A flag that has one word where it is set and another where it is not.
  NamedField as_either(const char* set, const char* not_set) const;
  // Of a struct within another: "first.tile=128x256x64".
  NamedField within(const std::string& name) const;

  const std::string& name() const { return name_; }
  // Whether text may leave it out, and who gives values by name, too: it stays as it is then.
  bool is_optional() const { return is_optional_; }
  std::string word() const;                                         // "compute=132", or nothing
  bool set(const std::string& value) const { return set_(value); }  // false: no value of it
  // The same for a word of a config's text, "compute=132" or what is said of a flag.
  bool set_by_word(const std::string& word) const;
  // Takes its word from the beginning of a text. Without one a flag is as text leaves it out, and
  // another field stays. False where text may not leave it out.
  bool take(std::string_view& text) const;

 private:
  using Text = std::function<std::optional<std::string>()>;
  using Set = std::function<bool(const std::string&)>;

  NamedField(const char* name, bool is_optional, Text text, Set set);

  template <typename Enum>
  static const char* name_of(Enum value) {
    using stretto::name;  // beside the method
    return name(value);
  }

  std::string name_, form_;
  std::string not_set_;  // what is said of a flag that is not set, if anything
  bool is_flag_ = false;
  bool is_optional_ = false;
  Text text_;  // nothing where text leaves it out
  Set set_;
};

using NamedFields = std::vector<NamedField>;

NamedFields joined(NamedFields first, const NamedFields& more);
// Of a struct within another, of that name.
NamedFields within(const std::string& name, const NamedFields& fields);

std::string text_of(const NamedFields& fields);
// By the operator's fields_of(Config&) or fields_of(Desc&).
template <typename Struct>
std::string text_of(Struct s) {
  return text_of(fields_of(s));
}

// That, but of descs before whose fields the operator's name is said.
template <typename Struct>
requires requires(Struct& s) {
  { fields_of(s) } -> std::same_as<NamedFields>;
}
std::string to_string(const Struct& s) { return text_of(s); }

// Sets the fields of a struct that is as by default to those that text_of() was of. UserError for
// any other text.
void read_text(const std::string& text, const NamedFields& fields);

// Sets the fields that the text names, and returns their names. UserError for a word that is no
// field, or no value of it; nothing is set then that stands behind it.
std::set<std::string> read_config(const std::string& text, const NamedFields& fields);

}  // namespace stretto
