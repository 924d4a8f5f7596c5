#include "stretto/codegen/prefetch_roles.h"

#include <fmt/format.h>

#include <algorithm>

#include "stretto/codegen/early_loads.h"
#include "stretto/ir/block_ops.h"

namespace stretto {
namespace {

bool known_at_once(const Program& program, const Expr& e) {
  if (!e.has_value()) return true;
  const ExprNode& n = e.node();
  if (n.op == ExprOp::kTable) return false;
  if (n.op == ExprOp::kVar) {
    VarKind kind = program.vars[static_cast<std::size_t>(n.value)].kind;
    if (kind == VarKind::kExtent || kind == VarKind::kScalar) return false;
  }
  return std::all_of(n.args.begin(), n.args.end(),
                     [&](const Expr& arg) { return known_at_once(program, arg); });
}

bool known_at_once(const Program& program, const std::vector<Expr>& exprs) {
  return std::all_of(exprs.begin(), exprs.end(),
                     [&](const Expr& e) { return known_at_once(program, e); });
}

}  // namespace

bool prefetches_constants(const Program& program, const Role& role,
                          const std::vector<bool>& constant) {
  bool plain = role.agents.size() == 1 && !role.resource.tickets && role.resource.beside < 0 &&
               role.resource.cluster_size == 1 && known_at_once(program, role.num_tiles);
  if (!plain) return false;
  bool any = false, all = true;
  for_each_op(role.agents[0].body, [&](const Op& op) {
    bool prefetches = op.code == OpCode::kPrefetch;
    any |= prefetches;
    all &= prefetches || op.code == OpCode::kLet || !op.bodies.empty();
    all &= known_at_once(program, op.exprs);
    if (!prefetches) return;
    const Region& r = *op.region;
    all &= is_constant(r, constant) && known_at_once(program, r.origin) &&
           known_at_once(program, r.row_end) &&
           known_at_once(program, program.tensors[static_cast<std::size_t>(r.tensor)].shape);
  });
  return any && all;
}

std::string at_once_text(KernelContext& kernel, const Role& role, int role_idx,
                         const RolePlan& plan, const std::string& condition, int first_block) {
  AgentSite site{&role, role_idx, 0, &plan};
  return fmt::format(
             "  if ({} && threadIdx.x < {}) {{  // role '{}', {}:{}\n"
             "    const int worker = int(blockIdx.x) - {};\n",
             condition, plan.threads[0], role.name, role.loc.file, role.loc.line, first_block) +
         agent_text(kernel, site) + "  }\n";
}

}  // namespace stretto
