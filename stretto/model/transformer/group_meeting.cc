#include "stretto/model/transformer/group_meeting.h"

#include <algorithm>

namespace stretto {

GroupMeeting::GroupMeeting(Rank& rank)
    : rank_(rank), counts_(rank.allocate("rows of a step", DType::kI64, 2)) {}

GroupMeeting::~GroupMeeting() { rank_.release(counts_); }

std::int64_t GroupMeeting::most(std::int64_t count) {
  std::size_t turn = num_steps_++ % 2;
  counts_.on<std::int64_t>(rank_.index())[turn] = count;
  rank_.barrier();
  std::int64_t most = 0;
  for (int r = 0; r < rank_.size(); ++r) most = std::max(most, counts_.on<std::int64_t>(r)[turn]);
  return most;
}

}  // namespace stretto
