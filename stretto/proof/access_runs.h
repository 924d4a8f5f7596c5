// Accesses of one agent to the same memory, as runs: made in one way, in program order. What is
// over before a place is over before all later places of its agent, and what is over took with it
// all that its agent did before in the same way. So of two runs neighbours tell of every pair, in
// as many steps as they have accesses; check.cc looks at single pairs where they do not tell.
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include "stretto/proof/access_index.h"
#include "stretto/proof/access_paths.h"

namespace stretto {

struct AccessRun {
  std::vector<AccessRef> refs;
};

// Empty where some access happens for some tables only: its order is a matter of both sides'
// choices.
std::vector<AccessRun> runs_of(const std::vector<AccessRef>& refs, const InstanceGraph& graph,
                               AccessPaths& paths);

// Whether it holds of each run of the one with each of the other; false where one has none.
bool of_all_runs(const std::vector<AccessRun>& xs, const std::vector<AccessRun>& ys,
                 const std::function<bool(const AccessRun&, const AccessRun&)>& holds);

// Whether the first is over before the second; monotone along both agents.
using Before = std::function<bool(const AccessRef&, const AccessRef&)>;

// Whether of each pair of two agents' accesses one is over before the other.
bool ordered_either_way(const AccessRun& x, const AccessRun& y, const Before& before);
// Whether each pair of one agent's accesses, in its order, is; `x` and `y` may be the same.
bool ordered_in_turn(const AccessRun& x, const AccessRun& y, const Before& before);

}  // namespace stretto
