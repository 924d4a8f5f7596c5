#include "stretto/proof/pipe_loops.h"

#include <algorithm>

#include "stretto/proof/loop_fold.h"

namespace stretto {

namespace {

std::int64_t most_slots(const Block& block) {
  std::int64_t most = 1;
  for (const Op& op : block) {
    if (op.code == OpCode::kLoop) most = std::max(most, slots_of_iteration(op.bodies[0]));
    for (const Block& body : op.bodies) most = std::max(most, most_slots(body));
  }
  return most;
}

}  // namespace

void PipeLoops::start_worker(const Role& role) {
  std::int64_t slots = 0;
  for (const Pipe& pipe : role.pipes) slots = std::max<std::int64_t>(slots, pipe.num_slots);
  step_ = 1;
  for (const Agent& agent : role.agents) step_ = std::max(step_, most_slots(agent.body));
  walked_ = slots + 2 * step_;
  entered_.clear();
  any_left_out_ = false;
}

std::int64_t PipeLoops::left_out(int pipe, std::int64_t tile, std::int64_t trips,
                                 std::int64_t slots) {
  std::int64_t passed = trips * slots;
  std::vector<Entered>& entered = entered_[pipe];
  std::size_t& next = next_[pipe];
  if (next == entered.size()) {
    entered.push_back({tile, std::max<std::int64_t>(passed - walked_, 0) / step_ * step_});
  }
  const Entered& e = entered[next++];
  any_left_out_ |= e.left_out > 0;
  // An iteration of another agent may stand before or after its loop (overlap_products.h,
  // stagger_products.h).
  bool same = e.tile == tile && passed - e.left_out >= walked_ - step_ && e.left_out % slots == 0;
  if (e.left_out > 0 && !same) throw UnevenPipeLoops{};
  return e.left_out / slots;
}

}  // namespace stretto
