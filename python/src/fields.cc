#include "fields.h"

#include <fmt/format.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <algorithm>

#include "stretto/base/errors.h"

namespace nb = nanobind;

namespace stretto::python {

Field::Field(const char* field, std::optional<double>& into)
    : name(field), set([&into](nb::handle value) { return nb::try_cast(value, into); }) {}

Field::Field(const char* field, std::string& into)
    : name(field), set([&into](nb::handle value) { return nb::try_cast(value, into); }) {}

Field::Field(const char* field, DType& into)
    : name(field), set([&into](nb::handle value) {
        std::string text;
        if (!nb::try_cast(value, text)) return false;
        into = parse_dtype(text);
        return true;
      }) {}

Field::Field(const char* field, Scaling& into)
    : Field(field, into,
            {{stretto::name(Scaling::kNone), Scaling::kNone},
             {stretto::name(Scaling::kRowWise), Scaling::kRowWise},
             {stretto::name(Scaling::kBlock), Scaling::kBlock}}) {}

bool Field::is_word(nb::handle value, const std::string& word) {
  std::string text;
  return nb::try_cast(value, text) && text == word;
}

void Fields::take(std::initializer_list<Field> fields) {
  for (const Field& field : fields) {
    if (!given_.contains(field.name)) {
      throw InternalError(fmt::format("{}: '{}' is missing", program_, field.name));
    }
    nb::object value = given_[field.name];
    if (!field.set(value)) {
      throw InternalError(fmt::format("{}: '{}' cannot be {}", program_, field.name,
                                      nb::cast<std::string>(nb::repr(value))));
    }
    taken_.emplace_back(field.name);
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
