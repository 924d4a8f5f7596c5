// The first words between the processes of a world, over TCP: everyone says to rank 0 who it is and
// under which name its local socket listens; when all have come, rank 0 tells everyone all names.
// Bounded in time; whoever is missing, dead, foreign or of another opinion is named to all.
// connect_peers (mesh.h) goes on from here.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "stretto/base/errors.h"
#include "stretto/runtime/processes/fd.h"
#include "stretto/runtime/processes/bootstrap_address.h"

namespace stretto {

struct Bootstrap {
  std::vector<std::string> socket_names;  // [world]
  std::uint64_t token = 0;                // of this world: the same for all, not known to others
  // Over which they met, [world]: rank 0's to each of the others, theirs to rank 0 in [0]. Nothing
  // travels there yet.
  std::vector<Fd> links;
};

// Fault naming the rank that does not come within the timeout or ends meanwhile; UserError, the
// same on every rank that has come, where two claim one rank, or sizes, versions or hosts differ.
Bootstrap bootstrap(const BootstrapAddress& at, const std::string& socket_name,
                       std::chrono::milliseconds timeout);

// The Fault of a rank that has to do without `missing` when the processes meet.
Fault bootstrap_fault(int rank, int missing, const std::string& reason);

}  // namespace stretto
