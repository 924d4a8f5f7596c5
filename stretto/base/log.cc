#include "stretto/base/log.h"

#include <fmt/format.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <cstdlib>
#include <optional>
#include <string>

#include "stretto/base/errors.h"

namespace stretto {
namespace {

// spdlog takes an unknown name for "off", which would hide every warning behind a typing error.
std::optional<spdlog::level::level_enum> wanted_level() {
  const char* text = std::getenv("STRETTO_LOG");
  if (text == nullptr || *text == '\0') return spdlog::level::warn;
  spdlog::level::level_enum level = spdlog::level::from_str(text);
  bool unknown = level == spdlog::level::off && std::string(text) != "off";
  if (unknown) return std::nullopt;
  return level;
}

}  // namespace

spdlog::logger& log() {
  static const std::shared_ptr<spdlog::logger> logger = [] {
    auto made = std::make_shared<spdlog::logger>(
        "stretto", std::make_shared<spdlog::sinks::stderr_color_sink_mt>());
    made->set_level(wanted_level().value_or(spdlog::level::warn));
    return made;
  }();
  return *logger;
}

void check_log_level() {
  if (wanted_level()) return;
  throw UserError(fmt::format("STRETTO_LOG is '{}': need trace, debug, info, warn, error or off",
                              std::getenv("STRETTO_LOG")));
}

void log_warning(std::string_view message) { log().warn(message); }

}  // namespace stretto
