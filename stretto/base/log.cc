#include "stretto/base/log.h"

#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <cstdlib>

namespace stretto {
namespace {

// spdlog takes an unknown name for "off", which would hide every warning behind a typing error.
spdlog::level::level_enum wanted_level() {
  const char* text = std::getenv("STRETTO_LOG");
  if (text == nullptr) return spdlog::level::warn;
  spdlog::level::level_enum level = spdlog::level::from_str(text);
  bool unknown = level == spdlog::level::off && std::string(text) != "off";
  return unknown ? spdlog::level::warn : level;
}

}  // namespace

spdlog::logger& log() {
  static const std::shared_ptr<spdlog::logger> logger = [] {
    auto made = std::make_shared<spdlog::logger>(
        "stretto", std::make_shared<spdlog::sinks::stderr_color_sink_mt>());
    made->set_level(wanted_level());
    return made;
  }();
  return *logger;
}

void log_warning(std::string_view message) { log().warn(message); }

}  // namespace stretto
