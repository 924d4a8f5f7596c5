// How data groups agree before each step on the largest number of rows that any of them has
// (ModelRunner::most_rows): on CPU ranks, and for GPUs of a world of processes.
#pragma once

#include <cstddef>
#include <cstdint>

#include "stretto/runtime/world.h"

namespace stretto {

class GroupRendezvous {
 public:
  explicit GroupRendezvous(Rank& rank);  // of all groups; collective. `rank` outlives this.
  ~GroupRendezvous();
  GroupRendezvous(const GroupRendezvous&) = delete;
  GroupRendezvous& operator=(const GroupRendezvous&) = delete;

  // The largest `count` of all ranks. Collective.
  std::int64_t most(std::int64_t count);

 private:
  Rank& rank_;
  SymmetricBuffer counts_;  // of an odd and of an even step, so that one barrier each is enough
  std::size_t num_steps_ = 0;
};

}  // namespace stretto
