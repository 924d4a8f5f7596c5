#include "stretto/base/errors.h"

#include <fmt/format.h>

namespace stretto {

std::string FaultRecord::to_string() const {
  std::string text = program + ": ";
  if (!role.empty()) text += fmt::format("role '{}' on ", role);
  text += fmt::format("rank {}", rank);
  if (tile >= 0) text += fmt::format(", tile {}", tile);
  if (!signal.empty()) {
    text += fmt::format(", waiting for signal '{}'[{}] >= {}, last seen {}", signal, channel,
                        expected, seen);
  }
  if (waited_for >= 0) text += fmt::format(", from rank {}", waited_for);
  return text + ": " + reason;
}

Fault::Fault(FaultRecord record) : Error(record.to_string()), record_(std::move(record)) {}

void check_failed(const char* file, int line, const char* condition, const std::string& message) {
  throw InternalError(
      fmt::format("{}:{}: internal check '{}' failed: {}", file, line, condition, message));
}

}  // namespace stretto
