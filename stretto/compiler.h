// The one way of a tile program to what runs it:
//   Lowered    lower(Program)                    the passes
//   Proved     prove(Lowered)                    or waive_proof(Lowered, why): no third way
//   Prediction predict::predict(program, machine)      predict/prediction.h
//   GpuCode    generate(Lowered, options)        gpu/gpu_code.h, for a GpuTarget
//   Executable load(Proved, ranks)               launch/executable.h, as what follows
//   Launch     executable.prepare(args)
//              launch.run(extents, stream)
// What is launched was proved, or its caller has said in words why not.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "stretto/ir/program.h"
#include "stretto/ir/quota.h"
#include "stretto/passes/pass.h"

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

// UserError for a bad program. One at schedule level is taken as it is; `after` is called after
// each pass.
Lowered lower(Program program, const AfterPass& after = {});

struct ProveOptions {
  // For launches that have every extent at its bound, and no others: a large product takes a second
  // instead of a minute.
  bool bounds_only = false;
};

// For a program that is launched with these extents and no others.
ProveOptions for_launches_of(const Lowered& program, const std::vector<std::int64_t>& extents);

// A program that may be launched, and for which launches that holds. Copies are cheap.
class Proved {
 public:
  const Lowered& lowered() const { return lowered_; }
  const Program& program() const { return lowered_.program(); }
  const Quotas& quotas() const { return *quotas_; }
  // Launches have every extent at its bound.
  bool bounds_only() const { return bounds_only_; }
  // UserError where these extents, in declaration order, are not among what was proved.
  void require_covers(std::span<const std::int64_t> extents) const;
  // Why nothing was proved; empty where it was.
  const std::string& waiver() const { return waiver_; }

 private:
  Proved(Lowered lowered, bool bounds_only, std::string waiver);
  friend Proved prove(Lowered program, const ProveOptions& options);
  friend Proved waive_proof(Lowered program, std::string why);
  Lowered lowered_;
  std::shared_ptr<const Quotas> quotas_;
  bool bounds_only_;
  std::string waiver_;
};

// Rejected, with the report, for a program that is wrong or beyond the proof's limits. Verdicts are
// kept on disk (proof/proof_cache.h).
Proved prove(Lowered program, const ProveOptions& options = {});
// For tests, and for whoever has shown it otherwise: `why`, in words, is never empty. Neither the
// command, the model, the engine nor benchmarks do it; tools/lint looks.
Proved waive_proof(Lowered program, std::string why);

}  // namespace stretto
