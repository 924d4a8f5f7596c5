// Programs with one mistake in their synchronisation, made from a correct one: what the proof has
// to reject, so that its verdict means something. Every mutation operator is applied at every
// synchronisation site of a schedule-level program; run_mutants.h proves the results.
#pragma once

#include <string>
#include <vector>

#include "stretto/ir/program.h"

namespace stretto {

struct Mutant {
  std::string kind;  // the mutation operator: "drop wait"
  std::string site;  // "gather: wait 'ready'", with "#2" and so on for later ones of that name
  Program program;
  // A report about the mistake names at least one of these: the signals and tensors concerned,
  // "file:line" of the operations.
  std::vector<std::string> clues;
};

// `program` at schedule level. Mutations that a world of one rank cannot tell apart are left out
// there. Not every mutant is wrong: see explained_survivors.h.
std::vector<Mutant> mutants_of(const Program& program);

}  // namespace stretto
