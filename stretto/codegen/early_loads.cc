#include "stretto/codegen/early_loads.h"

#include <algorithm>
#include <utility>

namespace stretto {
namespace {

// Nothing of it looks at memory but the puts, and the waits, which come later.
bool only_control(const Block& block) {
  return std::all_of(block.begin(), block.end(), [](const Op& op) {
    bool control = op.code == OpCode::kPipePut || op.code == OpCode::kLet ||
                   op.code == OpCode::kLoop || op.code == OpCode::kWhen || op.code == OpCode::kWait;
    return control && std::none_of(op.exprs.begin(), op.exprs.end(), uses_table) &&
           std::all_of(op.bodies.begin(), op.bodies.end(), only_control);
  });
}

struct Put {
  const Op* op;
  const Block* block;
};

void collect_puts(const Block& block, int pipe, std::vector<Put>& out) {
  for (const Op& op : block) {
    if (op.code == OpCode::kPipePut && op.symbol == pipe) out.push_back({&op, &block});
    for (const Block& body : op.bodies) collect_puts(body, pipe, out);
  }
}

enum class FirstOp : std::uint8_t { kNeither, kWait, kPut };
FirstOp first_op(const Block& block) {
  for (const Op& op : block) {
    if (op.code == OpCode::kWait) return FirstOp::kWait;
    if (op.code == OpCode::kPipePut) return FirstOp::kPut;
    for (const Block& body : op.bodies) {
      if (FirstOp found = first_op(body); found != FirstOp::kNeither) return found;
    }
  }
  return FirstOp::kNeither;
}

// Inputs of this rank alone, which no launch writes.
std::vector<bool> own_inputs(const Program& program) {
  std::vector<bool> inputs;
  for (const Tensor& t : program.tensors) {
    inputs.push_back(t.kind == TensorKind::kInput && t.space == Space::kLocal);
  }
  return inputs;
}

// Whether the role's producer waits for a signal before it puts anything.
bool waits_before_puts(const Role& role) {
  return std::any_of(role.agents.begin(), role.agents.end(), [](const Agent& agent) {
    return agent.kind == AgentKind::kProducer && first_op(agent.body) == FirstOp::kWait;
  });
}

int slots_of(const RolePlan& plan, int group) {
  return plan.groups[static_cast<std::size_t>(group)].num_slots;
}

}  // namespace

bool is_constant(const Region& region, const std::vector<bool>& constant) {
  bool own = !region.rank.has_value() || region.rank.same(Expr::var(0));
  auto tensor = static_cast<std::size_t>(region.tensor);
  return own && tensor < constant.size() && constant[tensor];
}

std::vector<int> early_groups(const Role& role, const RolePlan& plan,
                              const std::vector<bool>& constant) {
  std::vector<int> out;
  if (role.resource.tickets || role.resource.cluster_size > 1) return out;
  const Block* where = nullptr;
  for (std::size_t g = 0; g < plan.groups.size(); ++g) {
    const PipeGroup& group = plan.groups[g];
    int producer = role.pipes[static_cast<std::size_t>(group.pipes[0])].producer;
    const Agent& agent = role.agents[static_cast<std::size_t>(producer)];
    bool alone = agent.kind == AgentKind::kProducer && !plan.fills(role, producer);
    if (!alone || group.is_shared() || !only_control(agent.body)) continue;
    bool once = true, any = false;
    const Block* block = nullptr;
    for (int pipe : group.pipes) {
      std::vector<Put> puts;
      collect_puts(agent.body, pipe, puts);
      once &= puts.size() == 1;
      for (const Put& put : puts) {
        any |= is_constant(*put.op->region, constant);
        block = put.block;
      }
    }
    bool together = out.empty() || (block == where && group.num_slots == slots_of(plan, out[0]));
    if (!once || !any || !together) continue;
    where = block;
    out.push_back(static_cast<int>(g));
  }
  return out;
}

EarlyLoads early_loads(const Program& program, const Role& role, const RolePlan& plan,
                       const std::vector<bool>& constant) {
  std::vector<int> groups = early_groups(role, plan, constant);
  if (!groups.empty()) return {std::move(groups), constant, false};
  if (!waits_before_puts(role)) return {};
  std::vector<bool> inputs = own_inputs(program);
  groups = early_groups(role, plan, inputs);
  return {std::move(groups), std::move(inputs), true};
}

}  // namespace stretto
