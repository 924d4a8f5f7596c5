// An instance graph without the passing of slots that tells nobody anything new.
//
// A worker's agents pass thousands of slots, each of which orders them; but between two things that
// an agent learns from outside (a wait for a signal, a packet, a barrier) all of its puts say the
// same, and between two that it tells others all of its gets do. So of the puts, gets and releases
// only those stay that carry what was learnt, the first after it, or what will be told, the last
// before it, along every way from agent to agent of the worker.
//
// Pipes whose slots are passed at some sizes only (size_conditions.h) are left out altogether: what
// a put tells goes by the sizes.
//
// What is left out are edges, none is added, so whatever is ordered here is ordered in the whole
// graph, too: a program that is right by the slice is right. One that is not may need an edge that
// was left out: then the whole graph has to be looked at. Progress is the whole graph's matter.
#pragma once

#include "stretto/proof/instance_graph.h"

namespace stretto {

// For every load into a slot: where that slot is got. The k-th put of a pipe is got by the k-th
// get.
void link_landings(InstanceGraph& graph);

// `graph`, whose launch ends, with its landings linked. Accesses are the same, in the same order,
// but for reads of a rank's own inputs, of which nothing is asked; syncs no longer say which is
// theirs.
InstanceGraph without_idle_slots(const InstanceGraph& graph);

}  // namespace stretto
