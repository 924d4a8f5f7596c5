// Mutants that the proof rightly accepts, each with the reason why it is harmless. The test of the
// mutants compares: a survivor that is missing here, or an entry that nothing matches any more, is
// a failure.
#pragma once

#include <vector>

#include "stretto/proof/mutation/run_mutants.h"

namespace stretto {

// `label`, `kind` and `site` as in Survivor; in them `*` stands for any text and `@(a|b)` for one
// of several. Operators and their ranks are named one by one: a new one starts unexplained. A
// reason holds at these ranks and at the bounds of the shapes that mutation_test.cc takes.
struct Explanation {
  const char* label;
  const char* kind;
  const char* site;
  const char* reason;
};

const std::vector<Explanation>& explanations();
bool explains(const Explanation& explanation, const Survivor& survivor);
// The first that explains it, nullptr where none does.
const Explanation* find_explanation(const Survivor& survivor);

}  // namespace stretto
