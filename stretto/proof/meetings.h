// The writes that each box of a tensor meets in a launch, and which of its readers come after all
// of them. Readers are mostly many and alike (write_frontier.h); those that do not, or of which
// that is not seen, are left to check.cc, pair by pair.
#pragma once

#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

#include "stretto/proof/access_index.h"
#include "stretto/proof/access_paths.h"
#include "stretto/proof/happens_before.h"

namespace stretto {

struct Meeting {
  std::vector<std::size_t> writers;  // uses whose boxes overlap this one's
  std::vector<AccessRef> open;       // readers, but for those that come after all of these writes
  // Of those writers the ones that write rather than add, where all do for every table.
  std::optional<std::vector<std::size_t>> sure;
  std::optional<bool> covered;  // by these, once asked for
};

struct Meetings {
  std::vector<Meeting> of_box;                                // per use
  std::vector<std::pair<std::size_t, std::size_t>> overlaps;  // writing use, any use
};
Meetings meetings_of(const TensorUse& use, const InstanceGraph& graph, int launch,
                     const HappensBefore& order, AccessPaths& paths);

// Of an access, in the agent's program order.
inline ProgramPoint point_of(const AccessRef& ref, int launch) {
  return {ref.agent, launch, ref.access->pos, ref.access->landed};
}

}  // namespace stretto
