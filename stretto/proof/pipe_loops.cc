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
  of_pipe_.clear();
  agent_ = 0;
  any_left_out_ = false;
}

void PipeLoops::start_agent() {
  ++agent_;
  of_agent_.clear();
}

std::int64_t PipeLoops::left_out(const Loop& loop) {
  OfPipe& pipe = of_pipe_[loop.pipe];
  OfAgent& own = of_agent_[loop.pipe];
  if (pipe.first_agent < 0) pipe.first_agent = agent_;
  std::int64_t passes = loop.trips * loop.slots, begin = loop.passed + own.left_out;
  if (pipe.first_agent == agent_) {
    std::int64_t left_out = std::max<std::int64_t>(passes - walked_, 0) / step_ * step_;
    if (left_out > 0) pipe.entered.push_back({loop.tile, begin, begin + passes, left_out});
  }
  // An iteration of another agent may stand before or after its loop (overlap_products.h,
  // stagger_products.h).
  while (own.next < pipe.entered.size() && pipe.entered[own.next].end <= begin) ++own.next;
  bool meets = own.next < pipe.entered.size() && pipe.entered[own.next].begin < begin + passes;
  if (!meets) return 0;
  const Entered& e = pipe.entered[own.next++];
  bool same =
      e.tile == loop.tile && passes - e.left_out >= walked_ - step_ && e.left_out % loop.slots == 0;
  if (!same) throw UnevenPipeLoops{};
  any_left_out_ = true;
  own.left_out += e.left_out;
  return e.left_out / loop.slots;
}

}  // namespace stretto
