// Accesses to a buffer that are over before a later launch touches it, all of them at once. Mostly
// whatever a launch does there is over before anything that another rank does to the slot in the
// next launch which has it, wherever in the buffer that is: then what meets what need not be asked.
// What is over before a place is over before all later places of its agent, and what is over took
// with it all that its component did before. So the last access of each component, of those that
// are made in one way, stands for them all, and the first of each agent. What is said to be over is
// what HappensBefore says of every single pair; check.cc looks at what meets where nothing is said.
#pragma once

#include "stretto/proof/access_index.h"
#include "stretto/proof/access_paths.h"
#include "stretto/proof/happens_before.h"

namespace stretto {

// One launch's accesses to a rank's buffer.
struct LaunchUse {
  const InstanceGraph& graph;
  const TensorUse& use;
  int launch = 0;
};

// Whether of each access of the earlier launch and each of the later one that are of two ranks, and
// one of them a write, the first is over before the second. False also where that is not seen.
bool over_before_launch(const LaunchUse& earlier, const LaunchUse& later,
                        const HappensBefore& order, AccessPaths& paths);

}  // namespace stretto
