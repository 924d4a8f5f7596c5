#include "stretto/proof/pipe_loops.h"

#include <algorithm>

namespace stretto {

void PipeLoops::start_worker(const Role& role) {
  std::int64_t slots = 0;
  for (const Pipe& pipe : role.pipes) slots = std::max<std::int64_t>(slots, pipe.num_slots);
  walked_ = slots + 2;
  entered_.clear();
  any_left_out_ = false;
}

std::int64_t PipeLoops::left_out(std::int64_t tile, std::int64_t trips) {
  if (next_ == entered_.size()) {
    entered_.push_back({tile, std::max<std::int64_t>(trips - walked_, 0)});
  }
  const Entered& e = entered_[next_++];
  any_left_out_ |= e.left_out > 0;
  // One iteration of another agent may stand before or after its loop (overlap_products.h).
  if (e.left_out > 0 && (e.tile != tile || trips - e.left_out < walked_ - 1)) {
    throw UnevenPipeLoops{};
  }
  return e.left_out;
}

}  // namespace stretto
