#include "stretto/ops/operator/config_fields.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <sstream>

#include "stretto/base/errors.h"

namespace stretto {
namespace {

template <typename T>
bool read_number(std::string_view text, T& to) {
  T number = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return false;
  to = number;
  return true;
}

template <typename T>
std::function<std::optional<std::string>()> number_text(const T& at, std::optional<T> unless) {
  return [&at, unless]() -> std::optional<std::string> {
    if (at == unless) return std::nullopt;
    return fmt::format("{}", at);
  };
}

// "128x256x64": as many numbers as there are places, or none is set.
bool read_sizes(const std::string& text, const std::vector<std::int64_t*>& places) {
  std::vector<std::int64_t> sizes;
  std::istringstream in(text);
  for (std::string part; std::getline(in, part, 'x');) {
    if (!read_number(part, sizes.emplace_back())) return false;
  }
  if (sizes.size() != places.size() || text.ends_with('x')) return false;
  for (std::size_t i = 0; i < sizes.size(); ++i) *places[i] = sizes[i];
  return true;
}

}  // namespace

ConfigField::ConfigField(const char* name, int& at, std::optional<int> unless)
    : key_(name),
      text_(number_text(at, unless)),
      set_([&at](const std::string& value) { return read_number(value, at); }) {}

ConfigField::ConfigField(const char* name, std::int64_t& at, std::optional<std::int64_t> unless)
    : key_(name),
      text_(number_text(at, unless)),
      set_([&at](const std::string& value) { return read_number(value, at); }) {}

ConfigField::ConfigField(const char* name, bool& at)
    : key_(name),
      is_flag_(true),
      text_([&at]() -> std::optional<std::string> {
        if (!at) return std::nullopt;
        return "1";
      }),
      set_([&at](const std::string& value) {
        if (value != "0" && value != "1") return false;
        at = value == "1";
        return true;
      }) {}

ConfigField::ConfigField(const char* name, std::vector<std::int64_t*> at)
    : key_(name),
      text_([at]() -> std::optional<std::string> {
        std::vector<std::int64_t> sizes;
        for (const std::int64_t* size : at) sizes.push_back(*size);
        return fmt::format("{}", fmt::join(sizes, "x"));
      }),
      set_([at](const std::string& value) { return read_sizes(value, at); }) {}

std::string ConfigField::word() const {
  std::optional<std::string> value = text_();
  if (!value) return "";
  return is_flag_ ? key_ : key_ + "=" + *value;
}

std::string text_of(const ConfigFields& fields) {
  std::string out;
  for (const ConfigField& field : fields) {
    std::string word = field.word();
    if (!word.empty()) out += (out.empty() ? "" : " ") + word;
  }
  return out;
}

std::set<std::string> read_config(const std::string& text, const ConfigFields& fields) {
  std::set<std::string> named;
  std::istringstream in(text);
  for (std::string word; in >> word;) {
    std::size_t at = word.find('=');
    std::string key = word.substr(0, at);
    std::string value = at == std::string::npos ? "1" : word.substr(at + 1);
    auto field = std::find_if(fields.begin(), fields.end(),
                              [&](const ConfigField& f) { return f.key() == key; });
    if (field == fields.end() || !field->set(value)) {
      throw UserError(fmt::format("config '{}': '{}' is not understood here", text, key));
    }
    named.insert(key);
  }
  return named;
}

}  // namespace stretto
