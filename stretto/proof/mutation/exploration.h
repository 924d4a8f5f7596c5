// Every interleaving of a small program over a few launches, by brute force: an answer to "race or
// deadlock?" that shares no reasoning with the proof. What fails here must be rejected there.
//
// A state is how far each agent of each rank has come; between two synchronisation events an agent
// may do its accesses at any moment. Two conflicting accesses race when some reachable state lets
// both agents make theirs: waits are `>=` on counters that only grow, so an event that can happen
// stays possible whatever the others do, and accesses that can come in either order can also come
// together. The tiles are of one element: every thread has a copy when it is read, the same one
// stores it.
#pragma once

#include <cstddef>
#include <string>

#include "stretto/proof/instance_graph.h"

namespace stretto {

struct ExplorationOptions {
  int launches = 3;
  std::size_t max_states = 200'000;
};

struct Exploration {
  // false: nothing was found, but there were more states than allowed, or an agent reads its own
  // write after a wait that may or may not have brought it back.
  bool complete = true;
  std::string failure;  // empty: nothing goes wrong
  std::size_t num_states = 0;
  bool ok() const { return complete && failure.empty(); }
};

// Signals and fences only: a program with pipes, barriers or packets is a UserError.
Exploration explore(const InstanceGraph& graph, const ExplorationOptions& options = {});

}  // namespace stretto
