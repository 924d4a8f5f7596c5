// Runs of launches that repeat for ever, and what is found of each: the part of the proof that
// looks at one happens-before after another. prove.h says which runs there are.
#pragma once

#include <cstddef>
#include <exception>
#include <functional>
#include <string>
#include <vector>

#include "stretto/proof/prove.h"

namespace stretto {

// One graph, or two in turn.
struct LaunchPattern {
  std::vector<const InstanceGraph*> graphs;
  std::vector<int> key;  // period, and how each launch synchronises
  int period = 1;
  std::string where;  // the case, in a report
};

// Of patterns that synchronise alike.
struct PatternVerdict {
  std::vector<Finding> findings;
  ProofStats stats;
  std::exception_ptr error;
};

// On so many threads. The verdict is that of one pattern after the other, up to the first with a
// finding.
std::vector<PatternVerdict> prove_patterns(const std::vector<LaunchPattern>& patterns,
                                           const ProofOptions& options, std::size_t num_threads);

// Of a case, which the text ends with where there are several.
Finding finding_with(FindingKind kind, const std::string& text, const std::string& where,
                     const std::vector<ChosenCase>& cases);

// work(0) to work(count - 1), on so many threads.
void side_by_side(std::size_t count, std::size_t num_threads,
                  const std::function<void(std::size_t)>& work);

}  // namespace stretto
