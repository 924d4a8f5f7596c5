// Mutants that the proof rightly accepts, each with the reason why it is harmless. The test of the
// mutants compares: a survivor that is missing here, or an entry that nothing matches any more, is
// a failure.
#pragma once

#include <string>
#include <vector>

#include "stretto/proof/mutation/run_mutants.h"

namespace stretto {

// A reason holds at these ranks and bounds: at others the same mutant may do harm, and starts
// unexplained, as a new operator does. `program` is Survivor::label with P for its ranks ("gemm P
// gpu"), `kind` and `site` are as there; in the three `*` stands for any text and `@(a|b)` for one
// of several.
struct ExplainedAt {
  std::vector<int> ranks;
  std::vector<std::string> bounds;  // as Survivor::bounds
};
struct Explanation {
  const char* program;
  const ExplainedAt& at;
  const char* kind;
  const char* site;
  const char* reason;
};

const std::vector<Explanation>& explanations();
bool explains(const Explanation& explanation, const Survivor& survivor);
// The first that explains it, nullptr where none does.
const Explanation* find_explanation(const Survivor& survivor);

}  // namespace stretto
