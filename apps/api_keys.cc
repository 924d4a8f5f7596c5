#include "apps/api_keys.h"

#include <fmt/format.h>

#include <algorithm>

#include "stretto/base/errors.h"
#include "stretto/base/json.h"

namespace stretto {
namespace {

constexpr std::size_t kMostBytes = std::size_t{1} << 20;

}  // namespace

std::vector<std::string> read_keys(const std::string& path) {
  const std::string text = read_file(path, kMostBytes);
  std::vector<std::string> keys;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    std::string key = text.substr(at, end - at);
    if (key.ends_with('\r')) key.pop_back();
    if (!key.empty()) keys.push_back(key);
    at = end + 1;
  }
  if (keys.empty()) throw UserError(fmt::format("{}: holds no API key", path));
  return keys;
}

}  // namespace stretto
