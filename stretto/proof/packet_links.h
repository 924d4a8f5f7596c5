// Which packet stores of a launch each packet load of it needs. A load goes on when the launch's
// tag has come with all that it reads, and each packet is stored once (check.h). After expand.cc
// has walked all agents; timeline.h and happens_before.h go by it.
#pragma once

#include "stretto/proof/instance_graph.h"

namespace stretto {

// Fills InstanceGraph::packet_loads. Where masks are open (size_masks.h; they are settled), with
// all stores that a load may need at some size: a launch that ends by these ends at each size.
// Those that it needs at all sizes are marked; they alone order what comes before and after
// them.
void link_packets(InstanceGraph& graph);

}  // namespace stretto
