// The proof, the prediction, quotas and lists for copy engines go through a launch tile by tile.
// Whoever does counts what it passes, so that a slip in a size ends in an error that names a line
// instead of in hours or without memory.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <utility>

#include "stretto/base/errors.h"
#include "stretto/ir/program.h"

namespace stretto {

// Tiles and iterations of one launch, all ranks together.
inline constexpr std::int64_t kMaxWalked = std::int64_t{1} << 30;
// What is kept in memory for later counts as so many.
inline constexpr std::int64_t kKept = 32;

// There is more of a program than can be looked at: nothing is known to be wrong with it.
class BeyondLimit : public UserError {
 public:
  BeyondLimit(std::string place, std::string text)
      : UserError(place.empty() ? text : fmt::format("{}: {}", place, text)),
        where(std::move(place)),
        what_is_beyond(std::move(text)) {}
  std::string where, what_is_beyond;
};

class WalkBudget {
 public:
  // A tile, an iteration or what is kept, written at `loc`. BeyondLimit where it is one too many.
  void step(const SourceLoc& loc, std::int64_t cost = 1) {
    if ((left_ -= cost) < 0) refuse(loc);
  }

 private:
  [[noreturn]] static void refuse(const SourceLoc& loc) {
    throw BeyondLimit(
        fmt::format("{}:{}", loc.file, loc.line),
        fmt::format("a launch takes more operations than can be looked at one by one, some {}; "
                    "larger tiles take fewer",
                    kMaxWalked / kKept));
  }

  std::int64_t left_ = kMaxWalked;
};

}  // namespace stretto
