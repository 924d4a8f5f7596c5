#include "stretto/ops/operator/named_fields.h"

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

template <typename T>
std::function<bool(const std::string&)> number_set(T& at) {
  return [&at](const std::string& value) { return read_number(value, at); };
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

NamedField::NamedField(const char* name, bool is_optional, Text text, Set set)
    : name_(name),
      form_(name_ + "={}"),
      is_optional_(is_optional),
      text_(std::move(text)),
      set_(std::move(set)) {}

NamedField::NamedField(const char* name, int& at, std::optional<int> unless)
    : NamedField(name, unless.has_value(), number_text(at, unless), number_set(at)) {}

NamedField::NamedField(const char* name, std::int64_t& at, std::optional<std::int64_t> unless)
    : NamedField(name, unless.has_value(), number_text(at, unless), number_set(at)) {}

NamedField::NamedField(const char* name, double& at, std::optional<double> unless)
    : NamedField(name, unless.has_value(), number_text(at, unless), number_set(at)) {}

NamedField::NamedField(const char* name, std::optional<double>& at)
    : NamedField(
          name, true,
          [&at]() -> std::optional<std::string> {
            if (!at) return std::nullopt;
            return fmt::format("{}", *at);
          },
          [&at](const std::string& value) {
            if (value == "none") {
              at.reset();
              return true;
            }
            double number = 0;
            if (!read_number(value, number)) return false;
            at = number;
            return true;
          }) {}

NamedField::NamedField(const char* name, bool& at)
    : NamedField(
          name, true,
          [&at]() -> std::optional<std::string> {
            if (!at) return std::nullopt;
            return "1";
          },
          [&at](const std::string& value) {
            if (value != "0" && value != "1") return false;
            at = value == "1";
            return true;
          }) {
  form_ = name_;
}

NamedField::NamedField(const char* name, DType& at, std::optional<DType> unless)
    : NamedField(
          name, unless.has_value(),
          [&at, unless]() -> std::optional<std::string> {
            if (at == unless) return std::nullopt;
            return short_name(at);
          },
          [&at](const std::string& value) {
            at = parse_dtype(value);
            return true;
          }) {}

NamedField::NamedField(const char* name, std::vector<std::int64_t*> at)
    : NamedField(
          name, false,
          [at]() -> std::optional<std::string> {
            std::vector<std::int64_t> sizes;
            for (const std::int64_t* size : at) sizes.push_back(*size);
            return fmt::format("{}", fmt::join(sizes, "x"));
          },
          [at](const std::string& value) { return read_sizes(value, at); }) {}

NamedField NamedField::as(const char* form) const {
  NamedField other = *this;
  other.form_ = form;
  return other;
}

NamedField NamedField::unless_set(const char* word) const {
  NamedField other = as(word);
  other.text_ = [set = text_]() -> std::optional<std::string> {
    if (set()) return std::nullopt;
    return "0";
  };
  return other;
}

std::string NamedField::word() const {
  std::optional<std::string> value = text_();
  if (!value) return "";
  return fmt::format(fmt::runtime(form_), *value);
}

NamedFields joined(NamedFields first, const NamedFields& more) {
  first.insert(first.end(), more.begin(), more.end());
  return first;
}

std::string text_of(const NamedFields& fields) {
  std::string out;
  for (const NamedField& field : fields) {
    std::string word = field.word();
    if (!word.empty()) out += (out.empty() ? "" : " ") + word;
  }
  return out;
}

std::set<std::string> read_config(const std::string& text, const NamedFields& fields) {
  std::set<std::string> named;
  std::istringstream in(text);
  for (std::string word; in >> word;) {
    std::size_t at = word.find('=');
    std::string name = word.substr(0, at);
    std::string value = at == std::string::npos ? "1" : word.substr(at + 1);
    auto field = std::find_if(fields.begin(), fields.end(),
                              [&](const NamedField& f) { return f.name() == name; });
    if (field == fields.end() || !field->set(value)) {
      throw UserError(fmt::format("config '{}': '{}' is not understood here", text, name));
    }
    named.insert(name);
  }
  return named;
}

}  // namespace stretto
