#include "stretto/base/env.h"

#include <fmt/format.h>
#include <unistd.h>

#include <charconv>
#include <cstdlib>
#include <cstring>

#include "stretto/base/errors.h"
#include "stretto/base/own_files.h"

namespace stretto {

namespace {

// A whole number from 1 to `most`, or `otherwise` where the variable is unset or empty.
long long whole_number(const char* variable, long long most, long long otherwise) {
  const char* text = std::getenv(variable);
  if (text == nullptr || *text == '\0') return otherwise;
  long long value = 0;
  auto [end, error] = std::from_chars(text, text + std::strlen(text), value);
  if (error != std::errc() || *end != '\0' || value < 1 || value > most) {
    throw UserError(
        fmt::format("{} is '{}': need a whole number from 1 to {}", variable, text, most));
  }
  return value;
}

}  // namespace

std::chrono::milliseconds env_timeout() {
  return std::chrono::milliseconds(whole_number("STRETTO_TIMEOUT_MS", 86'400'000, 10'000));
}

std::chrono::seconds env_proof_limit() {
  return std::chrono::seconds(whole_number("STRETTO_PROOF_LIMIT_S", 86'400, 600));
}

std::uint64_t env_cache_bytes() {
  return static_cast<std::uint64_t>(whole_number("STRETTO_CACHE_MB", 1 << 30, 2048)) << 20;
}

std::filesystem::path env_cache_dir() {
  auto set = [](const char* variable) {
    const char* text = std::getenv(variable);
    return text != nullptr && *text != '\0' ? text : nullptr;
  };
  // Otherwise every folder in which somebody works would get one.
  auto set_in_full = [&](const char* variable) {
    const char* text = set(variable);
    return text != nullptr && *text == '/' ? text : nullptr;
  };
  if (const char* dir = set("STRETTO_CACHE_DIR")) return dir;
  if (const char* dir = set_in_full("XDG_CACHE_HOME")) {
    return std::filesystem::path(dir) / "stretto";
  }
  if (const char* home = set_in_full("HOME")) {
    return std::filesystem::path(home) / ".cache" / "stretto";
  }
  try {
    return temporary_folder() / fmt::format("stretto-cache-{}", ::geteuid());
  } catch (const UserError& e) {
    throw UserError(fmt::format("no place for the cache: set STRETTO_CACHE_DIR (HOME is unset): {}",
                                e.what()));
  }
}

std::filesystem::path env_nvrtc() {
  const char* text = std::getenv("STRETTO_NVRTC");
  return text == nullptr ? "" : text;
}

}  // namespace stretto
