#include "stretto/compiler.h"

#include <fmt/format.h>

#include <utility>

#include "stretto/base/errors.h"
#include "stretto/ir/verifier.h"
#include "stretto/passes/pipeline.h"
#include "stretto/proof/proof_cache.h"

namespace stretto {

Lowered lower(Program program, const AfterPass& after) {
  if (program.level == Level::kTile) return Lowered(run_pipeline(std::move(program), after));
  verify(program);
  return Lowered(std::move(program));
}

ProveOptions for_launches_of(const Lowered& program, const std::vector<std::int64_t>& extents) {
  return {.bounds_only = extents == extent_bounds(program.program())};
}

Proved::Proved(Lowered lowered, bool bounds_only, std::string waiver)
    : lowered_(std::move(lowered)),
      quotas_(std::make_shared<const Quotas>(count_quotas(program(), extent_bounds(program())))),
      bounds_only_(bounds_only),
      waiver_(std::move(waiver)) {}

void Proved::require_covers(std::span<const std::int64_t> extents) const {
  if (!bounds_only_) return;
  std::size_t at = 0;
  for (const Var& var : program().vars) {
    if (var.kind != VarKind::kExtent && var.kind != VarKind::kScalar) continue;
    if (at == extents.size()) return;  // too few: whoever takes them says so
    if (var.kind == VarKind::kExtent && extents[at] != var.bound) {
      throw UserError(fmt::format("{}: {} is {}, and the program is proved for {} alone",
                                  program().name, var.name, extents[at], var.bound));
    }
    ++at;
  }
}

Proved prove(Lowered program, const ProveOptions& options) {
  require_proved(program.program(), {.bounds_only = options.bounds_only});
  return {std::move(program), options.bounds_only, ""};
}

Proved waive_proof(Lowered program, std::string why) {
  STRETTO_CHECK(!why.empty(), "a proof is waived for a reason");
  return {std::move(program), false, std::move(why)};
}

}  // namespace stretto
