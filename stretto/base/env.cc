#include "stretto/base/env.h"

#include <fmt/format.h>

#include <charconv>
#include <cstdlib>
#include <cstring>

#include "stretto/base/errors.h"

namespace stretto {

std::chrono::milliseconds env_timeout() {
  const char* text = std::getenv("STRETTO_TIMEOUT_MS");
  if (text == nullptr || *text == '\0') return std::chrono::seconds(10);
  long long ms = 0;
  auto [end, error] = std::from_chars(text, text + std::strlen(text), ms);
  if (error != std::errc() || *end != '\0' || ms < 1 || ms > 86'400'000) {
    throw UserError(
        fmt::format("STRETTO_TIMEOUT_MS is '{}': need a whole number from 1 to 86400000", text));
  }
  return std::chrono::milliseconds(ms);
}

std::filesystem::path env_cache_dir() {
  auto set = [](const char* variable) {
    const char* text = std::getenv(variable);
    return text != nullptr && *text != '\0' ? text : nullptr;
  };
  if (const char* dir = set("STRETTO_CACHE_DIR")) return dir;
  if (const char* dir = set("XDG_CACHE_HOME")) return std::filesystem::path(dir) / "stretto";
  if (const char* home = set("HOME")) return std::filesystem::path(home) / ".cache" / "stretto";
  std::error_code error;
  std::filesystem::path temporary = std::filesystem::temp_directory_path(error);
  if (error) {
    throw UserError(fmt::format(
        "no place for the cache: set STRETTO_CACHE_DIR (HOME is unset and TMPDIR is unusable: {})",
        error.message()));
  }
  return temporary / "stretto-cache";
}

std::filesystem::path env_nvrtc() {
  const char* text = std::getenv("STRETTO_NVRTC");
  return text == nullptr ? "" : text;
}

}  // namespace stretto
