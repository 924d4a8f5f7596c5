#include "stretto/compiler.h"

#include <fmt/format.h>

#include <algorithm>
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

ProveOptions for_launches_of(const Lowered& program, const std::vector<std::int64_t>& extents,
                             const GpuTarget& gpu) {
  return {.bounds_only = extents == extent_bounds(program.program()), .gpu = gpu};
}

namespace {

ProofScope scope_of(const Program& program, const ProveOptions& options) {
  ProofScope scope{.sizes = {}, .also_at = options.also_at, .sms = options.gpu.sms};
  for (const Var& var : program.vars) {
    const bool is_scalar = var.kind == VarKind::kScalar;
    if (var.kind != VarKind::kExtent && !is_scalar) continue;
    const std::int64_t least = options.bounds_only && !is_scalar ? var.bound : 0;
    scope.sizes.push_back(
        {.name = var.name, .least = least, .most = var.bound, .is_scalar = is_scalar});
  }
  return scope;
}

}  // namespace

Proved::Proved(Lowered lowered, const ProveOptions& options, std::string waiver)
    : lowered_(std::move(lowered)),
      quotas_(std::make_shared<const Quotas>(count_quotas(program(), extent_bounds(program())))),
      scope_(std::make_shared<const ProofScope>(scope_of(program(), options))),
      bounds_only_(options.bounds_only),
      waiver_(std::move(waiver)) {}

void Proved::require_covers(std::span<const std::int64_t> extents) const {
  const std::vector<ProofScope::Size>& sizes = scope_->sizes;
  if (extents.size() != sizes.size()) {
    throw UserError(fmt::format("{}: {} extents given, {} declared", program().name,
                                extents.size(), sizes.size()));
  }
  auto is_also = [&](const std::vector<std::int64_t>& also) {
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      if (extents[i] != also[i] && !(sizes[i].is_scalar && sizes[i].covers(extents[i]))) {
        return false;
      }
    }
    return true;
  };
  if (std::ranges::any_of(scope_->also_at, is_also)) return;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    const ProofScope::Size& size = sizes[i];
    if (size.covers(extents[i])) continue;
    if (!scope_->also_at.empty()) {
      throw UserError(fmt::format("{}: {} is {}, and the program is proved for {} and {} others",
                                  program().name, size.name, extents[i], size.most,
                                  scope_->also_at.size()));
    }
    if (size.least == size.most) {
      throw UserError(fmt::format("{}: {} is {}, and the program is proved for {} alone",
                                  program().name, size.name, extents[i], size.most));
    }
    throw UserError(fmt::format("{}: {} '{}' is {}, and the program is proved for {} to {}",
                                program().name, size.is_scalar ? "scalar" : "extent", size.name,
                                extents[i], size.least, size.most));
  }
}

void Proved::require_covers_gpu(int sms, std::string_view gpu) const {
  if (sms == scope_->sms) return;
  throw UserError(fmt::format("{}: proved for GPUs of {} SMs, and {} has {}", program().name,
                              scope_->sms, gpu, sms));
}

Proved prove(Lowered program, const ProveOptions& options) {
  Verdict verdict = require_proved(program.program(),
                                   {.max_workers_per_rank = options.gpu.sms,
                                    .bounds_only = options.bounds_only,
                                    .also_at = options.also_at},
                                   options.waiver);
  return {std::move(program), options, verdict == Verdict::kNotComplete ? options.waiver : ""};
}

Proved waive_proof(Lowered program, std::string why, const GpuTarget& gpu) {
  STRETTO_CHECK(!why.empty(), "a proof is waived for a reason");
  return {std::move(program), {.gpu = gpu}, std::move(why)};
}

}  // namespace stretto
