// What launches of one kind promise those of others, so that no sequence of kinds has to be laid
// out (launch_orders.h).
//
// For programs whose signals that are waited for get their notifies from one rank each. There the
// order within a launch is the same in every sequence, and so are these three, found in a launch
// among others of its kind:
//   over    before which ranks' ends of the launch an access is over;
//   passes  which ranks' ends come after a rank's start: what that rank knew then, they know;
//   knows   which ranks' starts come before an access.
// An access is over before one of another rank, `slots` launches later, where it is over before the
// end of some rank, what that rank knows at its next start passes through every launch between, of
// whatever kind, and gets to a rank whose start the later access knows. That a rank passes on to
// itself, so launches that are put between take nothing away.
//
// Everything is linear in the kinds. What is not seen this way may still be so: the order may go
// through a wait for notifies of the launch before.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "stretto/proof/happens_before.h"

namespace stretto {

using RankSet = std::uint64_t;
inline constexpr int kMostRanksInSet = 64;

struct LaunchPromises {
  // Accesses that are alike in all but what they touch.
  struct Earlier {
    int rank = 0;
    bool writes = false;
    // Per way of making the access; of fewer ways the last one twice.
    std::array<std::pair<Past, RankSet>, 2> over;
    friend auto operator<=>(const Earlier&, const Earlier&) = default;
  };
  struct Later {
    int rank = 0;
    bool writes = false;
    std::array<RankSet, kNumPasts> knows;  // whichever way the access is made
    friend auto operator<=>(const Later&, const Later&) = default;
  };
  struct Uses {
    std::map<Earlier, std::vector<Box>> earlier;
    std::map<Later, std::vector<Box>> later;
  };
  std::map<std::pair<int, int>, Uses> uses;            // by tensor, and the rank that has it
  std::array<std::vector<RankSet>, kNumPasts> passes;  // [past][rank]
};

// Of the first launch in `order`, that of a sequence of one kind, with all that launches of the
// kind touch. For no more than kMostRanksInSet ranks.
LaunchPromises promises_of(const InstanceGraph& touched, const HappensBefore& order);

// The first buffer of which they do not show that no launch touches a slot that another rank still
// uses in an earlier one, in any sequence of these kinds.
std::optional<int> slots_in_doubt(const Program& program, const std::vector<LaunchPromises>& kinds);

}  // namespace stretto
