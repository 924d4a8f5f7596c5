#include "stretto/model/transformer/group_rendezvous.h"

#include <algorithm>

namespace stretto {

GroupRendezvous::GroupRendezvous(Rank& rank)
    : rank_(rank), counts_(rank.allocate("rows of a step", DType::kI64, 2)) {}

GroupRendezvous::~GroupRendezvous() { rank_.release(counts_); }

std::int64_t GroupRendezvous::most(std::int64_t count) {
  std::size_t turn = num_steps_++ % 2;
  counts_.on<std::int64_t>(rank_.index())[turn] = count;
  rank_.barrier();
  std::int64_t most = 0;
  for (int r = 0; r < rank_.size(); ++r) most = std::max(most, counts_.on<std::int64_t>(r)[turn]);
  return most;
}

}  // namespace stretto
