#include "stretto/proof/mutation/run_mutants.h"

#include <algorithm>
#include <chrono>

#include "stretto/base/errors.h"
#include "stretto/proof/mutation/explained_survivors.h"
#include "stretto/proof/prove_steps.h"

namespace stretto {

int MutationSummary::unexplained() const {
  return static_cast<int>(std::count_if(survivors.begin(), survivors.end(),
                                        [](const Survivor& s) { return s.reason.empty(); }));
}

void MutationSummary::add(const MutationSummary& other) {
  mutants += other.mutants;
  rejected += other.rejected;
  not_complete += other.not_complete;
  seconds += other.seconds;
  for (const auto& [kind, count] : other.mutants_by_kind) mutants_by_kind[kind] += count;
  survivors.insert(survivors.end(), other.survivors.begin(), other.survivors.end());
  verdicts.insert(other.verdicts.begin(), other.verdicts.end());
}

Program spread_over_workers(Program program) {
  const Program original = program;
  for (std::size_t r = 0; r < program.roles.size(); ++r) {
    Resource& resource = program.roles[r].resource;
    bool queues = resource.kind == ResourceKind::kCopyEngine;
    int before = resource.num_workers;
    resource.num_workers = std::max(before, queues ? 2 : 3);
    // Some roles deal tiles out to a number of queues of their own.
    if (queues && prove(program, mutant_options()).rejected()) resource.num_workers = before;
  }
  // Workers that notify of all their tiles together go by how tiles are dealt out.
  if (prove(program, mutant_options()).rejected()) return original;
  return program;
}

bool is_split(const Program& program) {
  return std::any_of(program.roles.begin(), program.roles.end(),
                     [](const Role& role) { return role.agents.size() > 1; });
}

char letter_of(const ProofResult& result) {
  return result.rejected() ? 'r' : result.proved() ? 'a' : 'n';
}

ProofOptions mutant_options() { return {.max_samples = 8, .max_findings = 1}; }

MutationSummary run_mutants(const std::string& label, const Program& program,
                            const AfterMutant& after) {
  auto begin = std::chrono::steady_clock::now();
  MutationSummary summary;
  ProofResult original = prove(program, mutant_options());
  STRETTO_CHECK(!original.rejected(), "mutants of a program that is rejected: " + original.report);
  for (const Mutant& mutant : mutants_of(program)) {
    ProofResult result = prove(mutant.program, mutant_options());
    ++summary.mutants;
    ++summary.mutants_by_kind[mutant.kind];
    summary.rejected += result.rejected() ? 1 : 0;
    summary.not_complete += result.verdict == Verdict::kNotComplete ? 1 : 0;
    summary.verdicts[label] += letter_of(result);
    if (result.proved()) {
      Survivor survivor{.label = label,
                        .kind = mutant.kind,
                        .site = mutant.site,
                        .ranks = program.world_size,
                        .bounds = describe_extents(program, extent_bounds(program)),
                        .reason = ""};
      const Explanation* explanation = find_explanation(survivor);
      if (explanation != nullptr) survivor.reason = explanation->reason;
      summary.survivors.push_back(std::move(survivor));
    }
    if (after) after(mutant, result);
  }
  std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  summary.seconds = took.count();
  return summary;
}

}  // namespace stretto
