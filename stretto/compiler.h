// The first steps of a tile program to what runs it (stretto.h has all of them): the passes lower
// it, then it is proved for certain launches. What is launched was proved, or its caller has said
// in words why not.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "stretto/ir/gpu_target.h"
#include "stretto/ir/program.h"
#include "stretto/ir/quota.h"
#include "stretto/passes/pass.h"
#include "stretto/proof/verdict.h"

namespace stretto {

// A program at schedule level, verified. Copies are cheap.
class Lowered {
 public:
  const Program& program() const { return *program_; }
  const std::shared_ptr<const Program>& shared() const { return program_; }

 private:
  explicit Lowered(Program program)
      : program_(std::make_shared<const Program>(std::move(program))) {}
  friend Lowered lower(Program program, const AfterPass& after);
  std::shared_ptr<const Program> program_;
};

// Lowers a program; one at schedule level is taken as it is. `after` is called after each pass.
// UserError for a bad program.
Lowered lower(Program program, const AfterPass& after = {});

struct ProveOptions {
  // Proves launches that have every extent at its bound, and no others: a large product takes a
  // second instead of a minute.
  bool bounds_only = false;
  // With bounds_only: launches may have these extents, too, in any sequence. Each entry has as
  // many extents as the program declares, in that order.
  std::vector<std::vector<std::int64_t>> also_at = {};
  // The GPUs that launch it (GpuWorld::target()): all workers of a rank are on SMs at a time.
  GpuTarget gpu = {};
  // Why it may be launched where its proof is not complete, in words. Only a caller of stretto has
  // a reason: neither the command, the model, the engine, benchmarks nor calibration; tools/lint
  // looks. What is rejected is refused all the same.
  std::string waiver = {};
};

// Options for a program that is launched with these extents and no others.
ProveOptions for_launches_of(const Lowered& program, const std::vector<std::int64_t>& extents,
                             const GpuTarget& gpu = {});

// The launches that a proof holds for.
struct ProofScope {
  struct Size {
    std::string name;
    std::int64_t least = 0, most = 0;
    bool is_scalar = false;

    bool covers(std::int64_t extent) const { return least <= extent && extent <= most; }
  };
  std::vector<Size> sizes;  // kExtent and kScalar variables in declaration order
  // What launches may have beside those for all of them, but for scalars.
  std::vector<std::vector<std::int64_t>> also_at;
  int sms = 0;              // that each GPU has; CPU ranks have none
};

// A program that may be launched, and for which launches that holds. Copies are cheap.
class Proved {
 public:
  const Lowered& lowered() const { return lowered_; }
  const Program& program() const { return lowered_.program(); }
  const Quotas& quotas() const { return *quotas_; }
  const ProofScope& scope() const { return *scope_; }
  // Launches have every extent at its bound.
  bool bounds_only() const { return bounds_only_; }
  // UserError where these extents, in declaration order, are not among what was proved.
  void require_covers(std::span<const std::int64_t> extents) const;
  // UserError where it was proved for another number of SMs than this GPU has; `gpu` names it.
  void require_covers_gpu(int sms, std::string_view gpu) const;
  // Why it may be launched although not all is shown of it; empty where all is.
  const std::string& waiver() const { return waiver_; }

 private:
  Proved(Lowered lowered, const ProveOptions& options, std::string waiver);
  friend Proved prove(Lowered program, const ProveOptions& options);
  friend Proved waive_proof(Lowered program, std::string why, const GpuTarget& gpu);
  Lowered lowered_;
  std::shared_ptr<const Quotas> quotas_;
  std::shared_ptr<const ProofScope> scope_;
  bool bounds_only_;
  std::string waiver_;
};

// Proves a program, for as long as STRETTO_PROOF_LIMIT_S says. Rejected, with the report, for one
// that is wrong. NotComplete (proof/verdict.h) where nothing wrong was found and something was not
// shown, the limit having been reached among others, unless options.waiver says why it may be
// launched. Verdicts are kept on disk (proof/proof_cache.h).
Proved prove(Lowered program, const ProveOptions& options = {});
// Leaves the proof out, for tests: nothing is known of the program then. A caller wants
// ProveOptions::waiver. `why`, in words, is never empty. Neither the command, the model, the
// engine, benchmarks nor calibration do it; tools/lint looks. The program is launched as if it had
// been proved for all sizes and this GPU.
Proved waive_proof(Lowered program, std::string why, const GpuTarget& gpu = {});

}  // namespace stretto
