// How far the accesses of a graph reach at any of the sizes that it stands for: a step of the
// expansion of a region (size_region.h), of which launches of different sizes are compared.
#pragma once

#include "stretto/proof/instance_graph.h"
#include "stretto/proof/size_region.h"

namespace stretto {

// Sets Access::span. Where an end of a box is not known to the region, its sample alone is left.
void note_spans(InstanceGraph& graph, SizeRegion& region);
// Of a graph whose masks are open: each box becomes what holds it at all sizes of the region.
void settle_masks(InstanceGraph& graph, const SizeRegion& region);

}  // namespace stretto
