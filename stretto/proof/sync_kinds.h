// Which launches synchronise alike. Extents and tables mostly decide accesses and not
// synchronisation, so one happens-before serves many of them.
#pragma once

#include <vector>

#include "stretto/proof/instance_graph.h"

namespace stretto {

// One number per graph, of the same program; graphs with the same number have the same counters and
// agents, and every agent the same notifies, waits, fences and packets in the same order.
std::vector<int> synchronisation_kinds(const std::vector<const InstanceGraph*>& graphs);

// The first operation that one of them does otherwise than the other. Null where only packets that
// they have in common meet otherwise.
const Op* first_difference(const InstanceGraph& a, const InstanceGraph& b);

// Whether a table decides some of its waits.
bool waits_by_table(const InstanceGraph& graph);

}  // namespace stretto
