// Fields of a config that a shape, or the config's other fields, leave no choice. One function of
// an operator names them: fit(fields, desc, config). With it a default or a candidate becomes what
// will run, so that tables show that, and what a user asked for is refused where he would not get
// it. Comes between an operator's Config and its program.
#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "stretto/base/errors.h"

namespace stretto {

class FieldFit {
 public:
  // Fields become what they can be.
  static FieldFit reducing() { return FieldFit(""); }
  // UserError for a field that is anything else; `shape` is what the text begins with, the operator
  // and its desc.
  static FieldFit refusing(std::string shape) { return FieldFit(std::move(shape)); }

  // The field of that name can only be `possible`, for the `reason`.
  template <typename T>
  void only(const char* field, T& value, const std::type_identity_t<T>& possible,
            std::string_view reason) const {
    if (value == possible) return;
    if (!shape_.empty()) {
      throw UserError(fmt::format("{}: {} is {}, can only be {}: {}", shape_, field, text(value),
                                  text(possible), reason));
    }
    value = possible;
  }
  // The same where it is more than `most`.
  template <typename T>
  void at_most(const char* field, T& value, const std::type_identity_t<T>& most,
               std::string_view reason) const {
    if (value > most) only(field, value, most, reason);
  }

 private:
  explicit FieldFit(std::string shape) : shape_(std::move(shape)) {}

  template <typename T>
  static std::string text(const T& value) {
    if constexpr (std::is_enum_v<T>) {
      return name(value);
    } else {
      return fmt::format("{}", value);
    }
  }

  std::string shape_;  // none: reduces
};

}  // namespace stretto
