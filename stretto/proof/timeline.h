// A run of consecutive launches, and one execution of it. Every rank starts launch e + 1 when its
// launch e has ended; ranks run freely otherwise.
//
// Waits are `>=` on monotone counters and agents never choose, so if one execution finishes, all
// do, and if one gets stuck, all get stuck in the same place: running every agent as far as it
// gets, in any order, decides progress. Waits that happen for some tables only are taken as if they
// always did: fewer waits get stuck less. The order found is a linear extension of happens-before.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "stretto/proof/instance_graph.h"

namespace stretto {

// The graphs of launches 0, 1, 2, ... All have the same agents and counters; events may differ with
// the extents.
struct Timeline {
  std::vector<const InstanceGraph*> launches;

  int num_launches() const { return static_cast<int>(launches.size()); }
  const InstanceGraph& launch(int e) const { return *launches[static_cast<std::size_t>(e)]; }
  const AgentTrace& trace(int agent, int e) const {
    return launch(e).agents[static_cast<std::size_t>(agent)];
  }
  // What the counter had got from all launches before e: waits of launch e are relative to it.
  std::int64_t base(int counter, int e) const {
    std::int64_t sum = 0;
    for (int i = 0; i < e; ++i) sum += launch(i).quota[static_cast<std::size_t>(counter)];
    return sum;
  }
};

// A part of an execution: synchronisation events [begin, end) of one agent in one launch. A part
// with an end may be empty: it says that the agent has started or finished.
struct Step {
  int agent, launch, begin, end;
};

struct Execution {
  bool finished = false;
  std::vector<Step> steps;
  std::string stuck;  // not finished: the cycle of waits, or the threshold that is never reached
  std::vector<std::pair<int, int>> stuck_choices;  // of those waits: rank and choice
};

Execution execute(const Timeline& timeline);

}  // namespace stretto
