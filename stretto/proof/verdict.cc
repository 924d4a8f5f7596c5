#include "stretto/proof/verdict.h"

#include <fmt/format.h>

#include <array>

namespace stretto {
namespace {

constexpr std::array<const char*, 4> kNames = {"proved", "proved at fixed sizes", "not complete",
                                               "rejected"};

}  // namespace

const char* name(Verdict verdict) { return kNames[static_cast<std::size_t>(verdict)]; }

std::optional<Verdict> verdict_named(std::string_view word) {
  for (std::size_t i = 0; i < kNames.size(); ++i) {
    if (word == kNames[i]) return static_cast<Verdict>(i);
  }
  return {};
}

std::string describe(const Missing& missing) {
  return fmt::format("{}: {}{}{}", missing.what, missing.where,
                     missing.expression.empty() || missing.where.empty() ? "" : ": ",
                     missing.expression);
}

}  // namespace stretto
