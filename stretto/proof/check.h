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

#include "stretto/proof/happens_before.h"

namespace stretto {

enum class FindingKind : std::uint8_t {
  kRace,       // two conflicting accesses without order, within a launch
  kReuse,      // ... across launches, or against the caller
  kUncovered,  // a read of what nobody wrote before it
  kOutput,     // an output element written twice or never
  kProgress,   // a threshold never reached, or a cycle of waits
  kQuota,      // a counter that does not get the same from every launch, or a wait beyond it
  kOutside,    // an access that never meets its tensor
  kResources,  // more workers than the device holds
  kIllFormed,  // an event that no order could make right
};
const char* name(FindingKind kind);

// What is so of a rank's tables in one of two launches.
struct ChosenCase {
  int rank = 0, launch = 0;
  int choice = TableChoices::kAlways;
};

struct Finding {
  FindingKind kind = FindingKind::kRace;
  std::string text;  // several lines, without a trailing newline
  // Where it is found for some tables only: for which, of two launches in turn.
  std::vector<ChosenCase> cases = {};
};

// Checks timelines that share instance graphs. Cases of one program mostly differ in their accesses
// alone, so one order serves many timelines, and what two timelines have in common is looked at
// once.
class AccessChecker {
 public:
  // At most `max_findings` are reported, one per pair of source lines. The graphs of all timelines
  // have to outlive the checker.
  explicit AccessChecker(int max_findings, const SyncTable& table = sync_table());
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
