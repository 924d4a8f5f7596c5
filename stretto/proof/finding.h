// What the proof has to say against a program. Made by check.h and prove.cc.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "stretto/proof/table_choices.h"

namespace stretto {

enum class FindingKind : std::uint8_t {
  kRace,       // two conflicting accesses without order, within a launch
  kReuse,      // ... across launches, or against the caller
  kUncovered,  // a read of what nobody wrote before it
  kOutput,     // an output element written twice or never, or touched where it is not given
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

// A launch and one so much later: the numbers of their sizes among those that synchronise alike
// (launch_orders.h).
struct CasesInTurn {
  int first = 0, later = 0, apart = 0;
};

struct Finding {
  FindingKind kind = FindingKind::kRace;
  std::string text;  // several lines, without a trailing newline
  // Where it is found for some tables only: for which, of two launches in turn.
  std::vector<ChosenCase> cases = {};
  CasesInTurn in_turn = {};
  // Where it is found: those of the first launch and of the later one, where there are two.
  std::vector<std::vector<std::int64_t>> extents = {};
};

}  // namespace stretto
