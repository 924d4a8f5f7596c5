// JSON as Python's writer leaves it: with a bare NaN, Infinity or -Infinity where a number is none,
// which are no JSON. They come out as strings of that spelling: a field that nobody reads does no
// harm, and one that is read is refused as no number.
#pragma once

#include <string>
#include <string_view>

#include "stretto/base/json.h"

namespace stretto {

// Otherwise as parse_json.
Json parse_python_json(std::string_view text, const std::string& where,
                       const JsonLimits& limits = {});

}  // namespace stretto
