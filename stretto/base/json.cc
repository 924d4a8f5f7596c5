#include "stretto/base/json.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <set>
#include <vector>

#include "stretto/base/errors.h"
#include "stretto/base/printable.h"

namespace stretto {

std::string to_line(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string read_file(const std::filesystem::path& path, std::size_t max_bytes) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) {
    throw UserError(fmt::format("{}: is a directory, need a file", path.string()));
  }
  errno = 0;
  std::ifstream in(path, std::ios::binary);
  if (!in) {
    const char* reason = errno != 0 ? std::strerror(errno) : "unknown reason";
    throw UserError(fmt::format("{}: cannot be opened for reading: {}", path.string(), reason));
  }
  std::string bytes;
  std::vector<char> chunk(1 << 20);
  while (in.read(chunk.data(), static_cast<std::streamsize>(chunk.size())) || in.gcount() > 0) {
    bytes.append(chunk.data(), static_cast<std::size_t>(in.gcount()));
    if (bytes.size() > max_bytes) {
      throw UserError(
          fmt::format("{}: larger than the {} bytes allowed", path.string(), max_bytes));
    }
  }
  if (in.bad()) throw UserError(fmt::format("{}: read error", path.string()));
  return bytes;
}

Json parse_json(std::string_view text, const std::string& where, const JsonLimits& limits) {
  if (text.size() > limits.max_bytes) {
    throw UserError(fmt::format("{}: {} bytes of JSON, at most {} allowed", where, text.size(),
                                limits.max_bytes));
  }
  if (text.starts_with("\xff\xfe") || text.starts_with("\xfe\xff")) {
    throw UserError(fmt::format("{}: not valid JSON: UTF-16, need UTF-8", where));
  }
  if (std::size_t nul = text.find('\0'); nul != std::string_view::npos) {
    // The parser would take it for the end of the text and ignore what follows.
    throw UserError(fmt::format("{}: not valid JSON: NUL byte at offset {}", where, nul));
  }
  std::vector<std::set<std::string>> keys;
  auto guard = [&](int depth, Json::parse_event_t event, Json& parsed) {
    if (depth > limits.max_depth) {
      throw UserError(fmt::format("{}: JSON nested deeper than {}", where, limits.max_depth));
    }
    if (event == Json::parse_event_t::object_start) keys.emplace_back();
    if (event == Json::parse_event_t::object_end && !keys.empty()) keys.pop_back();
    if (event == Json::parse_event_t::key) {
      const auto& key = parsed.get_ref<const std::string&>();
      if (!keys.back().insert(key).second) {
        throw UserError(fmt::format("{}: duplicate key '{}'", where, printable(key)));
      }
    }
    return true;
  };
  try {
    return Json::parse(text.begin(), text.end(), guard);
  } catch (const Json::exception& e) {
    // The parser quotes the offending bytes, which need be neither few nor UTF-8.
    throw UserError(fmt::format("{}: not valid JSON: {}", where, printable(e.what(), 300)));
  }
}

Json read_json_file(const std::filesystem::path& path, const JsonLimits& limits) {
  return parse_json(read_file(path, limits.max_bytes), path.string(), limits);
}

}  // namespace stretto
