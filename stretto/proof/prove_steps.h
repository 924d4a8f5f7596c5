// Steps of the proof that look at no launch: what a device has room for, and the verdict in the
// end.
#pragma once

#include <vector>

#include "stretto/proof/prove.h"

namespace stretto {

// Of workers that do not fit on the device, and of slots that the table leaves unguarded.
std::vector<Finding> resource_findings(const Program& program, const ProofOptions& options);

// The verdict and the report, from findings and what is missing.
void conclude(const Program& program, bool bounds_only, ProofResult& result);

}  // namespace stretto
