#include "stretto/ops/moe/expert_split.h"

#include <fmt/format.h>

#include "stretto/base/errors.h"

namespace stretto {

void check_split(const std::string& op, const ExpertSplit& s) {
  if (s.groups >= 1 && s.world_size % s.groups == 0) return;
  throw UserError(
      fmt::format("{}: {} groups of experts do not divide {} ranks", op, s.groups, s.world_size));
}

}  // namespace stretto
