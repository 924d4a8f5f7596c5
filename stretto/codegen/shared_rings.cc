#include "stretto/codegen/shared_rings.h"

#include <algorithm>
#include <set>
#include <vector>

#include "stretto/codegen/role_plan.h"

namespace stretto {
namespace {

void collect_puts(const Op& op, std::set<int>& pipes) {
  if (op.code == OpCode::kPipePut || op.code == OpCode::kPipeFill) pipes.insert(op.symbol);
  for (const Block& body : op.bodies) {
    for (const Op& inner : body) collect_puts(inner, pipes);
  }
}

}  // namespace

std::optional<RingTurn> ring_turn(const Role& role, int pipe) {
  const std::vector<int> rings = rings_of(role);
  auto ring = [&](int i) { return rings[static_cast<std::size_t>(i)]; };
  int producer = role.pipes[static_cast<std::size_t>(pipe)].producer;
  std::vector<int> order;  // the ring's pipes, as a tile fills them
  for (const Op& op : role.agents[static_cast<std::size_t>(producer)].body) {
    std::set<int> filled;
    collect_puts(op, filled);
    std::erase_if(filled, [&](int i) { return ring(i) != ring(pipe); });
    if (filled.empty()) continue;
    bool again = std::find(order.begin(), order.end(), *filled.begin()) != order.end();
    if (filled.size() > 1 || again) return std::nullopt;
    order.push_back(*filled.begin());
  }
  auto turn = std::find(order.begin(), order.end(), pipe);
  if (turn == order.end()) return std::nullopt;
  return RingTurn{static_cast<int>(turn - order.begin()), static_cast<int>(order.size())};
}

std::string share_rings(const Role& role, RolePlan& plan) {
  const std::vector<int> rings = rings_of(role);
  for (PipeGroup& group : plan.groups) {
    for (int pipe : group.pipes) {
      if (rings[static_cast<std::size_t>(pipe)] < 0) continue;
      const Pipe& p = role.pipes[static_cast<std::size_t>(pipe)];
      std::optional<RingTurn> turn = ring_turn(role, pipe);
      int ring = p.shares < 0 ? -1 : plan.pipes[static_cast<std::size_t>(p.shares)].group;
      bool first = pipe == group.pipes.front();
      if (!turn || (!first && (ring != group.shares || turn != group.turn))) {
        return "pipe '" + p.name +
               "' shares slots, which a tile fills for one consumer after the other";
      }
      group.shares = ring;
      group.turn = *turn;
    }
  }
  return "";
}

bool gets_from(const Op& op, int pipe) {
  if (op.code == OpCode::kPipeGet && op.symbol == pipe) return true;
  return std::any_of(op.bodies.begin(), op.bodies.end(), [&](const Block& body) {
    return std::any_of(body.begin(), body.end(),
                       [&](const Op& inner) { return gets_from(inner, pipe); });
  });
}

}  // namespace stretto
