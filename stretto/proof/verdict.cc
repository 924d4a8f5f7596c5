#include "stretto/proof/verdict.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

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

namespace {

// What the caller can do, by what is missing.
std::string what_may_help(const std::vector<Missing>& missing) {
  auto lacks = [&](const char* what) {
    return std::ranges::any_of(missing, [&](const Missing& m) { return m.what == what; });
  };
  std::string text;
  if (lacks(kMissingLimit)) {
    text +=
        "Where the limit is time, a longer STRETTO_PROOF_LIMIT_S may show it; otherwise smaller "
        "bounds, larger tiles or fewer slots. ";
  }
  if (lacks(kMissingSizes) || lacks(kMissingOrders)) {
    text += "Smaller bounds may show it, or launches of one size, every extent at its bound. ";
  }
  if (lacks(kMissingTables) || lacks(kMissingEntries)) {
    text += "A wait for the entry that the access goes by may show it, or rows bounded by one "
            "partition. ";
  }
  return text;
}

std::string refusal(const std::string& program, const std::vector<Missing>& missing) {
  std::string text = program + " is not launched: nothing wrong was found, and not all was shown";
  for (const Missing& m : missing) text += "\n    not shown: " + describe(m);
  return fmt::format(
      "{}\n{}To launch it as it is, say why: ProveOptions::waiver in C++, "
      "Program.waive_proof in Python, --waive-proof of stretto trace "
      "(docs/concepts/proof.md, Not complete)",
      text, what_may_help(missing));
}

}  // namespace

NotComplete::NotComplete(const std::string& program, std::vector<Missing> missing)
    : Error(refusal(program, missing)), missing_(std::move(missing)) {}

}  // namespace stretto
