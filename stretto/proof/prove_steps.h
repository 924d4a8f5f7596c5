// Steps of the proof that look at no launch: what a device has room for, and the verdict in the
// end.
#pragma once

#include <optional>
#include <vector>

#include "stretto/proof/instance_graph.h"
#include "stretto/proof/prove.h"
#include "stretto/proof/reach.h"
#include "stretto/proof/size_partition.h"

namespace stretto {

// Of workers that do not fit on the device, and of slots that the table leaves unguarded.
std::vector<Finding> resource_findings(const Program& program, const ProofOptions& options);

// UserError for extents beside the bounds (ProofOptions::also_at) that the program does not take.
void require_sizes(const Program& program, const ProofOptions& options);

// The verdict and the report, from findings and what is missing.
void conclude(const Program& program, bool bounds_only, ProofResult& result);

// One combination of extents and tables.
struct Case {
  InstanceGraph graph;
  std::string where;
};
std::string describe_extents(const Program& program, const std::vector<std::int64_t>& extents);

// A slice synchronises less than its graph, and more alike (pipe_slice.h), so that few orders serve
// all sizes. None where a launch does not end.
//
// A launch that ends by itself ends after and beside others, too: were the ranks' launches made one
// by one, each would begin with every counter at the base that its waits are relative to.
std::optional<Case> slice_of(const Case& one);

// That a launch ends however often loops over slots run that tables end (trip_counts.h).
bool ends_however_often(const Program& program, const std::vector<Case>& cases,
                        std::size_t threads);

// Of pieces of sizes with masks left open (size_partition.h), and what their lines meet. None where
// there are more than `most`, or where something may be wrong with one of them by itself.
struct MaskedSlices {
  std::vector<std::optional<Case>> slices;
  UnmetTensors unmet;
  std::size_t events = 0;  // of the largest
};
std::optional<MaskedSlices> masked_slices(const Program& program, const MostPieces& most,
                                          LeftOpen open, NoPieces& why);

}  // namespace stretto
