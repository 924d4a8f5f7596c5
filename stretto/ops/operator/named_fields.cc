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
  is_flag_ = true;
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

NamedField::NamedField(const char* name, std::vector<std::int64_t*> at,
                       std::optional<std::int64_t> unless_all)
    : NamedField(
          name, unless_all.has_value(),
          [at, unless_all]() -> std::optional<std::string> {
            if (std::ranges::all_of(
                    at, [&](const std::int64_t* size) { return *size == unless_all; })) {
              return std::nullopt;
            }
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

NamedField NamedField::unless_set(const char* word) const { return as_either("", word); }

NamedField NamedField::as_either(const char* set, const char* not_set) const {
  NamedField other = as(set);
  other.not_set_ = not_set;
  return other;
}

NamedField NamedField::within(const std::string& name) const {
  NamedField other = *this;
  for (std::string* said : {&other.name_, &other.form_, &other.not_set_}) {
    if (!said->empty()) *said = name + "." + *said;
  }
  return other;
}

std::string NamedField::word() const {
  std::optional<std::string> value = text_();
  if (is_flag_) return value ? form_ : not_set_;
  if (!value) return "";
  return fmt::format(fmt::runtime(form_), *value);
}

bool NamedField::set_by_word(const std::string& word) const {
  if (is_flag_ && !word.empty() && (word == form_ || word == not_set_)) {
    return set(word == form_ ? "1" : "0");
  }
  const std::size_t at = word.find('=');
  if (word.substr(0, at) != name_) return false;
  return set(at == std::string::npos ? "1" : word.substr(at + 1));
}

bool NamedField::take(std::string_view& text) const {
  // What stands at the beginning, as a word of its own.
  auto begins_with = [&](std::string_view word) {
    return !word.empty() && text.starts_with(word) &&
           (text.size() == word.size() || text[word.size()] == ' ');
  };
  auto pass = [&](std::size_t count) {
    text.remove_prefix(std::min(text.size(), count + 1));
    return true;
  };
  if (is_flag_) {
    for (bool is_set : {true, false}) {
      const std::string& word = is_set ? form_ : not_set_;
      if (begins_with(word)) return set(is_set ? "1" : "0") && pass(word.size());
    }
    return (form_.empty() || not_set_.empty()) && set(form_.empty() ? "1" : "0");
  }
  const std::size_t value_at = form_.find("{}");
  const std::string_view before = std::string_view(form_).substr(0, value_at);
  const std::string_view behind = std::string_view(form_).substr(value_at + 2);
  if (!text.starts_with(before)) return is_optional_;
  const std::size_t end = behind.empty() ? std::min(text.find(' ', before.size()), text.size())
                                         : text.find(behind, before.size());
  if (end == std::string_view::npos || !begins_with(text.substr(0, end + behind.size()))) {
    return is_optional_;
  }
  try {
    if (!set(std::string(text.substr(before.size(), end - before.size())))) return is_optional_;
  } catch (const UserError&) {  // no dtype
    return is_optional_;
  }
  return pass(end + behind.size());
}

NamedFields within(const std::string& name, const NamedFields& fields) {
  NamedFields all;
  for (const NamedField& field : fields) all.push_back(field.within(name));
  return all;
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

void read_text(const std::string& text, const NamedFields& fields) {
  std::string_view rest = text;
  for (const NamedField& field : fields) {
    if (!field.take(rest)) {
      throw UserError(fmt::format("'{}': '{}' does not begin with {}", text, rest, field.name()));
    }
  }
  if (!rest.empty()) throw UserError(fmt::format("'{}': '{}' is not understood", text, rest));
}

std::set<std::string> read_config(const std::string& text, const NamedFields& fields) {
  std::set<std::string> named;
  std::istringstream in(text);
  for (std::string word; in >> word;) {
    auto field = std::find_if(fields.begin(), fields.end(),
                              [&](const NamedField& f) { return f.set_by_word(word); });
    if (field == fields.end()) {
      throw UserError(fmt::format("config '{}': '{}' is not understood here", text,
                                  word.substr(0, word.find('='))));
    }
    named.insert(field->name());
  }
  return named;
}

}  // namespace stretto
