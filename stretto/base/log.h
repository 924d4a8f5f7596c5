// The one logger: spdlog on stderr. STRETTO_LOG sets the level (trace, debug, info, warn, error,
// off); default warn.
#pragma once

#include <string_view>

namespace spdlog {
class logger;
}

namespace stretto {

// Thread-safe; created at first use. <spdlog/spdlog.h> is left to the few who change where it goes:
// it would have every file that logs compile the whole of fmt.
spdlog::logger& log();

void log_warning(std::string_view message);

// UserError where STRETTO_LOG is none of these.
void check_log_level();

}  // namespace stretto
