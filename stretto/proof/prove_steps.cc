#include "stretto/proof/prove_steps.h"

#include <fmt/format.h>

#include <string>

#include "stretto/proof/access_paths.h"

namespace stretto {
namespace {

void add(std::vector<Finding>& found, FindingKind kind, const std::string& text) {
  found.push_back({.kind = kind, .text = text});
}

void check_resources(const Program& program, const ProofOptions& options,
                     std::vector<Finding>& found) {
  int sms = 0, queues = 0;
  const char* what = "workers";
  for (const Role& role : program.roles) {
    const Resource& r = role.resource;
    sms += r.num_own_sms();
    if (r.cluster_size > 1) what = "blocks of workers";
    if (r.kind == ResourceKind::kCopyEngine) queues += r.num_workers;
  }
  if (sms > options.max_workers_per_rank) {
    add(found, FindingKind::kResources,
        fmt::format("{} {} per rank, the device holds {} at a time", sms, what,
                    options.max_workers_per_rank));
  }
  if (queues > options.max_copy_queues) {
    add(found, FindingKind::kResources,
        fmt::format("{} copy queues per rank of {}", queues, options.max_copy_queues));
  }
}

// A pipe's slots are memory too, which its own synchronisation alone guards.
void check_pipes(const Program& program, const ProofOptions& options, std::vector<Finding>& found) {
  std::string missing = missing_in_pipes(*options.table);
  if (missing.empty()) return;
  for (const Role& role : program.roles) {
    for (const Pipe& pipe : role.pipes) {
      return add(found, FindingKind::kRace,
                 fmt::format("{}:{}: slots of pipe '{}' of role '{}', between the put and the get "
                             "and between the get and the next put\n    {}",
                             role.loc.file, role.loc.line, pipe.name, role.name, missing));
    }
  }
}

}  // namespace

std::vector<Finding> resource_findings(const Program& program, const ProofOptions& options) {
  std::vector<Finding> found;
  check_resources(program, options, found);
  check_pipes(program, options, found);
  return found;
}

void conclude(const Program& program, bool bounds_only, ProofResult& result) {
  bool found = !result.findings.empty();
  if (found) result.missing.clear();
  if (found) {
    result.verdict = Verdict::kRejected;
  } else if (!result.missing.empty()) {
    result.verdict = Verdict::kNotComplete;
  } else {
    result.verdict = bounds_only ? Verdict::kProvedAtFixedSizes : Verdict::kProved;
  }
  const ProofStats& s = result.stats;
  result.report = fmt::format("{}: {} on {} rank{}", name(result.verdict), program.name,
                              program.world_size, program.world_size == 1 ? "" : "s");
  if (!found) {
    result.report +=
        fmt::format(" ({} cases, {} events per launch, {:.3f} s)", s.cases, s.events, s.seconds);
  }
  for (const Missing& m : result.missing) result.report += "\n    not shown: " + describe(m);
  int n = 0;
  for (const Finding& f : result.findings) {
    result.report += fmt::format("\n{}. {}\n    {}", ++n, name(f.kind), f.text);
  }
}

}  // namespace stretto
