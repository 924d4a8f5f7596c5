#include "stretto/proof/steady_slots.h"

#include <algorithm>

#include "stretto/ir/op_info.h"
#include "stretto/proof/loop_fold.h"

namespace stretto {
bool is_steady(const Op& op, const std::set<int>& known, const SteadyRule& rule) {
  if (op.region2) return false;
  if (std::optional<bool> said = rule(op, known)) return *said;
  switch (op.code) {
    case OpCode::kLet:
      return true;
    case OpCode::kLoop: {
      std::set<int> within = known;
      within.insert(op.var);
      return all_go_by_only(op.exprs, known) && is_steady(op.bodies[0], within, rule);
    }
    case OpCode::kWhen:
      if (is_register_choice(op)) return true;
      return all_go_by_only(op.exprs, known) && is_steady(op.bodies[0], known, rule) &&
             is_steady(op.bodies[1], known, rule);
    case OpCode::kPipeGet:
    case OpCode::kPipeRelease:
      return !op.region;
    case OpCode::kAwait:
      return all_go_by_only(op.exprs, known);
    default:
      return op.bodies.empty() && !op.region && !op_info(op.code).synchronises &&
             op_info(op.code).schedule_level;
  }
}

bool is_steady(const Block& block, const std::set<int>& known, const SteadyRule& rule) {
  return std::all_of(block.begin(), block.end(),
                     [&](const Op& op) { return is_steady(op, known, rule); });
}

bool keeps_sides(const Block& block, int agent, const Role& role) {
  return std::all_of(block.begin(), block.end(), [&](const Op& op) {
    if (passes_slot(op)) {
      const Pipe& pipe = role.pipes[static_cast<std::size_t>(op.symbol)];
      bool puts = op.code == OpCode::kPipePut || op.code == OpCode::kPipeFill;
      if (agent != (puts ? pipe.producer : pipe.consumer)) return false;
    }
    return std::all_of(op.bodies.begin(), op.bodies.end(),
                       [&](const Block& body) { return keeps_sides(body, agent, role); });
  });
}

void SlotWalk::block(const Block& ops) {
  for (const Op& op : ops) walk(op);
}

void SlotWalk::walk(const Op& op) {
  if (op.code == OpCode::kWhen && is_register_choice(op)) return either(op);
  const std::set<int>* slots = loops_ == nullptr ? nullptr : loops_->slots_of_loop(op);
  if (slots != nullptr) {
    if (slots->empty()) return loops_->read_registers(op, syncs_);
    return loops_->meet_instead(op, parties_, ++meetings_, syncs_);
  }
  syncs_.use_registers(op);
  switch (op.code) {
    case OpCode::kLoop: {
      std::int64_t begin = state_.scope.value(op.exprs[0], "loop");
      std::int64_t end = state_.scope.value(op.exprs[1], "loop");
      for (std::int64_t i = begin; i < end; ++i) {
        state_.budget.step(op.loc);
        state_.scope.set(op.var, i);
        block(op.bodies[0]);
      }
      return;
    }
    case OpCode::kWhen:
      return block(op.bodies[state_.scope.value(op.exprs[0], "condition") != 0 ? 0 : 1]);
    case OpCode::kPipePut:
    case OpCode::kPipeFill:
      return syncs_.pipe_fill(op);
    case OpCode::kPipeGet:
      return syncs_.pipe_get(op);
    case OpCode::kPipeRelease:
      return syncs_.pipe_release(op);
    case OpCode::kDotAsync:
      return syncs_.async_dot(op);
    case OpCode::kAwait:
      return syncs_.await(op);
    default:
      return;
  }
}

void SlotWalk::either(const Op& when) {
  for (const Block& body : when.bodies) {
    for (const Op& op : body) {
      for (int reg : op.operands) syncs_.read_register(op, reg);
      if (op.code == OpCode::kWhen) either(op);
    }
  }
}

}  // namespace stretto
