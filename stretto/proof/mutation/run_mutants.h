// Proves every mutant of a program and counts: the test of the proof itself. What is accepted is
// either explained (explained_survivors.h) or a mistake the proof cannot see. Of a mutant that is
// not complete nothing is claimed, and no launch takes it.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "stretto/proof/mutation/mutate.h"
#include "stretto/proof/prove.h"

namespace stretto {

struct Survivor {
  std::string label, kind, site;
  int ranks = 0;
  std::string bounds;  // of the run-time sizes: "m = 37"; empty: it has none
  std::string reason;  // why it is harmless; empty where nobody has explained it
};

struct MutationSummary {
  int mutants = 0, rejected = 0, not_complete = 0;
  std::map<std::string, int> mutants_by_kind;
  std::vector<Survivor> survivors;  // accepted
  // Of each program by its label, a letter per mutant in their order: r(ejected), n(ot complete),
  // a(ccepted).
  std::map<std::string, std::string> verdicts;
  double seconds = 0;

  int unexplained() const;
  void add(const MutationSummary& other);
};

char letter_of(const ProofResult& result);

using AfterMutant = std::function<void(const Mutant&, const ProofResult&)>;

// `label` names the program in the summary and in the list of explanations: "all_gather P=2".
// `program` at schedule level, and proved: a program that is rejected itself is an InternalError.
// Calls `after` (may be empty) for each mutant.
MutationSummary run_mutants(const std::string& label, const Program& program,
                            const AfterMutant& after = {});

// The same program with several workers per role. Where one worker does all tiles of a role, its
// program order hides what a missing wait would do. Copy queues that count on their number keep it.
Program spread_over_workers(Program program);

// Whether the passes have split a role of it into agents.
bool is_split(const Program& program);

// How mutants are proved: fewer samples of run-time extents than for a shipped program, since a
// mistake in the synchronisation shows at nearly any of them.
ProofOptions mutant_options();

}  // namespace stretto
