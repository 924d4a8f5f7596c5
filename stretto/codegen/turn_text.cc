// How consumers that share a ring of slots take turns at it (shared_rings.h), and warpgroups at the
// tensor core.
#include <algorithm>

#include "stretto/codegen/agent_writer.h"

namespace stretto {

std::string AgentWriter::take_turn_text() const {
  if (turn_barrier_ == kFirstTurnBarrier) return "take_turn(team);";
  return fmt::format("take_turn<{}>(team);", turn_barrier_);
}
std::string AgentWriter::pass_turn_text() const {
  std::string at = turn_barrier_ == kFirstTurnBarrier ? "" : fmt::format(", {}", turn_barrier_);
  return fmt::format("pass_turn<{}{}>(team);", values_.warpgroups(), at);
}

// Before the first op of a tile that gets from a ring which other consumers share.
void AgentWriter::begin_turns(const Block& ops, std::size_t at) {
  if (producer() || &ops != &agent_.body) return;
  for (std::size_t i = 0; i < plan_.groups.size(); ++i) {
    const PipeGroup& group = plan_.groups[i];
    int pipe = group.pipes.front();
    auto gets = [&](const Op& op) { return gets_from(op, pipe); };
    if (!group.is_shared() || !gets(ops[at])) continue;
    if (std::any_of(ops.begin(), ops.begin() + static_cast<std::ptrdiff_t>(at), gets)) continue;
    int turn = group.turn.turn;
    auto g = static_cast<int>(i);
    // The first of all begins at once.
    line("mbarrier_wait_acquire_cta(&turn{}[{}], turns{}{});", g, turn, g,
         turn == 0 ? " ^ 1" : "");
    line("turns{} ^= 1;", g);
    line("freed{} = ring{} = Ring<{}>::from(u32(place{}[{}]));", g, g, group.num_slots, g, turn);
  }
}

// Behind the last op that gets from such a ring, in every branch; at the end of those that get
// none. Of the pipes of a group, the last one's get goes on to the next slot.
void AgentWriter::find_passes(const Block& block, int group) {
  int pipe = plan_.groups[static_cast<std::size_t>(group)].pipes.back();
  auto last = std::find_if(block.rbegin(), block.rend(),
                           [&](const Op& op) { return gets_from(op, pipe); });
  if (last == block.rend()) {
    passes_[&block].push_back(group);
  } else if (last->code != OpCode::kWhen) {
    passes_[&*last].push_back(group);
  } else {
    for (const Block& body : last->bodies) find_passes(body, group);
  }
}

// `behind`: an op, or a block.
void AgentWriter::pass_turns(const void* behind) {
  auto passes = passes_.find(behind);
  if (passes == passes_.end()) return;
  for (int g : passes->second) {
    const RingTurn& turn = plan_.groups[static_cast<std::size_t>(g)].turn;
    int next = (turn.turn + 1) % turn.num_turns;
    line("__syncwarp();  // nobody waits for a slot of this turn any more");
    meet_in_warps();
    line("if (team.tid == 0) place{}[{}] = ring{}.place();", g, next, g);
    line("if (team.tid % 32 == 0) mbarrier_arrive_release_cta(&turn{}[{}]);", g, next);
  }
}

}  // namespace stretto
