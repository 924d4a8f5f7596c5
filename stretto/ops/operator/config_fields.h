// The fields of a config, listed once by its operator: their names, in the order of its text, and
// where they are. From the list come the text, "tile=128x256x64 compute=132 gather=send across", by
// which configs are told apart and kept, and its reading.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <optional>
#include <set>
#include <string>
#include <type_traits>
#include <vector>

namespace stretto {

class ConfigField {
 public:
  // Numbers. With `unless`, text leaves the field out where it is that.
  ConfigField(const char* name, int& at, std::optional<int> unless = {});
  ConfigField(const char* name, std::int64_t& at, std::optional<std::int64_t> unless = {});
  // "across", or nothing.
  ConfigField(const char* name, bool& at);
  // The sizes of a tile, "128x256x64".
  ConfigField(const char* name, std::vector<std::int64_t*> at);
  // A word, by the enumeration's name().
  template <typename Enum>
  ConfigField(const char* field, Enum& at, std::initializer_list<Enum> values,
              std::type_identity_t<std::optional<Enum>> unless = {})
      : key_(field),
        text_([&at, unless]() -> std::optional<std::string> {
          if (at == unless) return std::nullopt;
          return name(at);
        }),
        set_([&at, values = std::vector<Enum>(values)](const std::string& word) {
          for (Enum value : values) {
            if (word != name(value)) continue;
            at = value;
            return true;
          }
          return false;
        }) {}

  const std::string& key() const { return key_; }
  std::string word() const;                                         // "compute=132", or nothing
  bool set(const std::string& value) const { return set_(value); }  // false: no value of it

 private:
  std::string key_;
  bool is_flag_ = false;
  std::function<std::optional<std::string>()> text_;
  std::function<bool(const std::string&)> set_;
};

using ConfigFields = std::vector<ConfigField>;

std::string text_of(const ConfigFields& fields);
// By the operator's fields_of(Config&).
template <typename Config>
std::string text_of(Config config) {
  return text_of(fields_of(config));
}

// Sets the fields that the text names, and returns their names. UserError for a word that is no
// field, or no value of it; nothing is set then that stands behind it.
std::set<std::string> read_config(const std::string& text, const ConfigFields& fields);

}  // namespace stretto
