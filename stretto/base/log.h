// The one logger: spdlog on stderr. STRETTO_LOG sets the level (trace, debug, info, warn, error,
// off); default warn.
#pragma once

#include <spdlog/spdlog.h>

namespace stretto {

// Thread-safe; created at first use.
spdlog::logger& log();

}  // namespace stretto
