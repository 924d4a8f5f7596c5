// The values of a JSON schema's `format` that constrain strings, as regular expressions.
#pragma once

#include <optional>
#include <string_view>

namespace stretto::grammar {

// Formats that every text has: they say how it is shown, or where it leads.
bool is_any_format(std::string_view format);

// Nothing where it is not known.
std::optional<std::string_view> regex_of_format(std::string_view format);

}  // namespace stretto::grammar
