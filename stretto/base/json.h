// JSON from files and requests, which are hostile until parsed: size, depth and UTF-8 are checked
// before use. What comes out is a tree of any shape; json_fields.h reads typed, range-checked
// fields out of it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "stretto/base/json_fwd.h"

namespace stretto {

struct JsonLimits {
  std::size_t max_bytes = std::size_t{256} << 20;
  int max_depth = 64;
};

// `where` names the source in errors (a path, "request"). Duplicate keys within an object are
// refused.
Json parse_json(std::string_view text, const std::string& where, const JsonLimits& limits = {});
Json read_json_file(const std::filesystem::path& path, const JsonLimits& limits = {});

// On one line. What is no UTF-8 in it, as a file's name may be, is replaced.
std::string to_line(const Json& json);

// Whole file as bytes, refused over max_bytes; UserError naming the path when it cannot be read.
std::string read_file(const std::filesystem::path& path, std::size_t max_bytes);

}  // namespace stretto
