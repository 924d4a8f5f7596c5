// The checks on one timeline: every read covered, every output element written exactly once, every
// conflicting pair ordered, within a launch and across the launches that share a slot.
//
// The window is finite, the claim is not: whatever holds between launches e and e' holds between
// e + period and e' + period (the premises of every derived edge shift with it), so checking the
// launches of the first period against everything up to a period later is checking them for ever.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "stretto/proof/finding.h"
#include "stretto/proof/happens_before.h"

namespace stretto {

constexpr std::size_t kFewPairs = 64;

// Checks timelines that share instance graphs. Cases of one program mostly differ in their accesses
// alone, so one order serves many timelines, and what two timelines have in common is looked at
// once.
class AccessChecker {
 public:
  // At most `max_findings` are reported, one per pair of source lines. The graphs of all timelines
  // have to outlive the checker. More pairs of accesses to the same memory than `few_pairs` are
  // settled by runs where that is possible (access_runs.h), which changes no finding.
  explicit AccessChecker(int max_findings, const SyncTable& table = sync_table(),
                         std::size_t few_pairs = kFewPairs);
  ~AccessChecker();

  // The order of the launches checked from now on: of any timeline that synchronises as they do. It
  // has to outlive those checks.
  void use(const HappensBefore& order);
  // `period` is a multiple of every slot count and of the launch pattern's length.
  std::vector<Finding> check(const Timeline& timeline, int period);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace stretto
