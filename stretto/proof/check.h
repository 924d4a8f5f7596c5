// The checks on one timeline: every read covered, every output element written exactly once, every
// conflicting pair ordered, within a launch and across the launches that share a slot.
//
// All of it is asked of the timeline's first launch. The window is finite, the claim is not: what
// is ordered in launches 0, 1, ... is ordered wherever launches of the same kinds follow each
// other, since with launches before them there is no less order (happens_before.h).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "stretto/proof/finding.h"
#include "stretto/proof/happens_before.h"

namespace stretto {

// Checks timelines that share instance graphs. Cases of one program mostly differ in their accesses
// alone, so one order serves many timelines, and what two timelines have in common is looked at
// once.
class AccessChecker {
 public:
  // At most `max_findings` are reported, one per pair of source lines. The graphs of all timelines
  // have to outlive the checker. More pairs of accesses to the same memory than `few_pairs` are
  // settled by runs where that is possible (access_runs.h), which changes no finding.
  explicit AccessChecker(int max_findings, const SyncTable& table, std::size_t few_pairs);
  ~AccessChecker();

  // The order of the launches checked from now on: of any timeline that synchronises as they do. It
  // has to outlive those checks.
  void use(const HappensBefore& order);
  // The first launch by itself.
  std::vector<Finding> check_launch(const Timeline& timeline);
  // The first launch against those up to `reach` launches later that share a slot with it.
  std::vector<Finding> check_reuse(const Timeline& timeline, int reach);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace stretto
