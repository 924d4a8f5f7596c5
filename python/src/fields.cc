#include "fields.h"

#include <fmt/format.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <optional>

#include "stretto/base/errors.h"

namespace nb = nanobind;

namespace stretto::python {
namespace {

// As NamedField::set() reads it: a word, "1" or "0", "none", or a number.
std::optional<std::string> text_of(nb::handle value) {
  std::string word;
  if (nb::try_cast(value, word)) return word;
  if (value.is_none()) return "none";
  if (nb::isinstance<nb::bool_>(value)) return nb::cast<bool>(value) ? "1" : "0";
  if (nb::isinstance<nb::float_>(value)) return fmt::format("{}", nb::cast<double>(value));
  if (PyIndex_Check(value.ptr()) == 0) return std::nullopt;
  nb::object number = nb::steal(PyNumber_Index(value.ptr()));
  if (!number.is_valid()) nb::raise_python_error();
  return nb::cast<std::string>(nb::repr(number));
}

}  // namespace

void Fields::take(const NamedFields& fields) {
  for (const NamedField& field : fields) {
    const char* name = field.name().c_str();
    if (!given_.contains(name)) {
      if (field.is_optional()) continue;
      throw InternalError(fmt::format("{}: '{}' is missing", program_, name));
    }
    nb::object value = given_[name];
    std::optional<std::string> text = text_of(value);
    if (!text || !field.set(*text)) {
      throw InternalError(fmt::format("{}: '{}' cannot be {}", program_, name,
                                      nb::cast<std::string>(nb::repr(value))));
    }
    taken_.emplace_back(name);
  }
}

void Fields::finish() const {
  for (auto [key, value] : given_) {
    auto name = nb::cast<std::string>(key);
    if (std::find(taken_.begin(), taken_.end(), name) != taken_.end()) continue;
    throw InternalError(fmt::format("{}: there is no '{}'", program_, name));
  }
}

}  // namespace stretto::python
