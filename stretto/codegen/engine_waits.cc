#include "stretto/codegen/engine_waits.h"

#include <algorithm>

#include "stretto/codegen/copy_engine_plan.h"

namespace stretto {
namespace {

bool uses(const Block& block, int var) {
  return std::any_of(block.begin(), block.end(), [&](const Op& op) {
    return std::any_of(op.exprs.begin(), op.exprs.end(),
                       [&](const Expr& e) { return e.has_value() && uses_var(e, var); }) ||
           std::any_of(op.bodies.begin(), op.bodies.end(),
                       [&](const Block& body) { return uses(body, var); });
  });
}

// From the end, so that a let is kept only where something kept needs it.
Block filtered(const Program& program, const Block& block, WaitsOf which) {
  Block out;
  for (auto op = block.rbegin(); op != block.rend(); ++op) {
    bool keep = op->code == OpCode::kLet && uses(out, op->var);
    if (op->code == OpCode::kWait) {
      keep = announced_at_start(program, op->symbol) == (which == WaitsOf::kGate);
    }
    Op copy = *op;
    for (Block& body : copy.bodies) {
      body = filtered(program, body, which);
      keep |= !body.empty();
    }
    if (keep) out.insert(out.begin(), std::move(copy));
  }
  return out;
}

}  // namespace

Role role_waits(const Program& schedule, const Role& role, WaitsOf which) {
  Role out = role;
  out.resource = Resource::sms(role.resource.num_workers);
  out.agents = {{.name = "waits", .kind = AgentKind::kProducer}};
  out.agents[0].body = filtered(schedule, role.agents[0].body, which);
  return out;
}

}  // namespace stretto
