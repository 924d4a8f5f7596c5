#include "bench/gpu/harness/without_communication.h"

#include <fmt/format.h>

#include <utility>
#include <vector>

#include "stretto/base/errors.h"
#include "stretto/ir/block_ops.h"
#include "stretto/passes/prune.h"

namespace stretto::bench {
namespace {

bool on_copy_engine(const Role& role) { return role.resource.kind == ResourceKind::kCopyEngine; }

bool signals(const Op& op) {
  switch (op.code) {
    case OpCode::kNotify:
    case OpCode::kWait:
    case OpCode::kProducerTileNotify:
    case OpCode::kConsumerTileWait:
      return true;
    default:
      return false;
  }
}

void erase_signals(Block& block) {
  std::erase_if(block, signals);
  for (Op& op : block) {
    for (Block& body : op.bodies) erase_signals(body);
  }
}

// Of a role on copy engines, every buffer that its copies write.
void hand_to_caller(Program& program, const Role& role) {
  auto hand = [&](const Op& op) {
    if (!op.region2) return;
    Tensor& written = program.tensors[static_cast<std::size_t>(op.region2->tensor)];
    if (written.kind != TensorKind::kBuffer) return;
    written.kind = TensorKind::kState;
    written.num_slots = 1;  // others are for launches that overtake each other
  };
  for (const Agent& agent : role.agents) for_each_op(agent.body, hand);
}

// Roles beside others are known by those roles' numbers.
void erase_copies(Program& program) {
  std::vector<int> now;
  std::vector<Role> kept;
  for (Role& role : program.roles) {
    now.push_back(static_cast<int>(kept.size()));
    if (on_copy_engine(role)) {
      hand_to_caller(program, role);
    } else {
      kept.push_back(std::move(role));
    }
  }
  for (Role& role : kept) {
    int& beside = role.resource.beside;
    if (beside >= 0) beside = now[static_cast<std::size_t>(beside)];
  }
  program.roles = std::move(kept);
}

}  // namespace

Program without_communication(Program program) {
  STRETTO_CHECK(program.level == Level::kTile, "not split into agents yet");
  erase_copies(program);
  std::vector<Agent*> agents = {&program.on_start, &program.on_end};
  for (Role& role : program.roles) agents.push_back(&role.agents.front());
  for (Agent* agent : agents) {
    if (any_op(agent->body, [](const Op& op) { return op.code == OpCode::kLoadPacket; })) {
      throw UserError(fmt::format("{}: its packets have to be sent", program.name));
    }
    erase_signals(agent->body);
    prune(program, agent->body);
  }
  program.signals.clear();
  return program;
}

}  // namespace stretto::bench
