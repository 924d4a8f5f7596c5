#include "apps/whole_numbers.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <cstdint>
#include <limits>
#include <string>

namespace stretto {
namespace {

// The same number without leading zeros.
template <typename Number>
std::string decimal(const std::string& text) {
  Number value = 0;
  const char *begin = text.data(), *end = begin + text.size();
  auto [stop, error] = std::from_chars(begin, end, value);
  if (error == std::errc() && stop == end) return fmt::format("{}", value);
  bool negative = std::numeric_limits<Number>::min() == 0 && text.starts_with('-');
  throw CLI::ValidationError(fmt::format("'{}': need a {}whole number{}", text,
                                         negative ? "" : "decimal ",
                                         error == std::errc::result_out_of_range ? " of 64 bits"
                                         : negative                              ? ", 0 or more"
                                                                                 : ""));
}

// Of an option for a real number: CLI11 reads nothing as 0.
std::string number_given(const std::string& text) {
  if (text.find_first_not_of(" \t") == std::string::npos) {
    throw CLI::ValidationError(fmt::format("'{}': need a number", text));
  }
  return text;
}

}  // namespace

void read_whole_numbers(CLI::App& app) {
  for (CLI::App* command : app.get_subcommands({})) {
    for (CLI::Option* option : command->get_options()) {
      std::string type = option->get_type_name();
      if (type.starts_with("UINT")) {
        option->transform(decimal<std::uint64_t>);
      } else if (type.starts_with("INT")) {
        option->transform(decimal<std::int64_t>);
      } else if (type.starts_with("FLOAT")) {
        option->transform(number_given);
      }
    }
  }
}

}  // namespace stretto
