// What the rows of the catalog make of a shape: m rows of n elements, and a config with small tiles
// for small shapes, so that tests have many of them.
#pragma once

#include "stretto/ops/collectives/collectives.h"
#include "stretto/ops/operator/operator.h"

namespace stretto {

CollectiveDesc collective_desc(const OpShape& shape, Reduction reduction = Reduction::kSum);

CollectiveConfig small_tiles_config(const CollectiveDesc& desc, Target target);
// Where nobody pushes.
CollectiveConfig fetching_config(const CollectiveDesc& desc, Target target);
// Of gather, scatter and all-to-all: in rings some workers only receive.
CollectiveConfig one_hop_config(const CollectiveDesc& desc, Target target);
CollectiveConfig small_tiles_config(const CollectiveDesc& desc, Target target, AllReduceKind kind);

// Of what travels as int8; two_hops: of an all-reduce.
CollectiveDesc int8_desc(const OpShape& shape);
CollectiveConfig int8_config(const CollectiveDesc& desc, Target target, bool two_hops);

// Of collectives of one rank with the others: here of one in the middle.
int middle_rank(const OpShape& shape);
using RootedProgram = Program (*)(const CollectiveDesc&, const CollectiveConfig&, int root);
Program with_middle_root(RootedProgram program, const OpShape& shape);
Program send_from_last(const CollectiveDesc& desc, const CollectiveConfig& config, int root);

}  // namespace stretto
