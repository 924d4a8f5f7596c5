// Checks of numbers that options take, whose messages are as short as the numbers. CLI11's own
// print the largest double in full, and take what is no number.
#pragma once

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <limits>
#include <string>

#include "stretto/base/printable.h"

namespace stretto {

inline CLI::Validator number_from(double least, bool includes_least, const char* need,
                                  const char* name) {
  return CLI::Validator(
      [=](std::string& text) {
        double value = 0;
        const bool is_number = CLI::detail::lexical_cast(text, value);
        const bool is_low = includes_least ? !(value >= least) : !(value > least);
        if (is_number && !is_low && value <= std::numeric_limits<double>::max()) {
          return std::string();
        }
        return fmt::format("{}: need a number {}", printable(text, 40), need);
      },
      name);
}

inline CLI::Validator positive() { return number_from(0, false, "above 0", "POSITIVE"); }
inline CLI::Validator non_negative() {
  return number_from(0, true, "that is not below 0", "NONNEGATIVE");
}

inline CLI::Validator between(double least, double most) {
  return CLI::Validator(
      [=](std::string& text) {
        double value = 0;
        const bool is_number = CLI::detail::lexical_cast(text, value);
        if (is_number && value >= least && value <= most) return std::string();
        return fmt::format("{}: need a number from {} to {}", printable(text, 40), least, most);
      },
      fmt::format("FLOAT in [{} - {}]", least, most));
}

}  // namespace stretto
