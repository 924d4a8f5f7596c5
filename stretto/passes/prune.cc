#include "stretto/passes/prune.h"

#include <algorithm>

namespace stretto {
namespace {

void mark_vars(const Expr& e, std::vector<bool>& used) {
  if (!e.has_value()) return;
  const ExprNode& n = e.node();
  if (n.op == ExprOp::kVar) used[static_cast<std::size_t>(n.value)] = true;
  for (const Expr& arg : n.args) mark_vars(arg, used);
}

void mark_vars(const Region& r, std::vector<bool>& used) {
  for (const Expr& e : r.origin) mark_vars(e, used);
  for (const Expr& e : {r.rank, r.row_end, r.col_end}) mark_vars(e, used);
}

void mark_vars(const Block& block, std::vector<bool>& used) {
  for (const Op& op : block) {
    for (const Expr& e : op.exprs) mark_vars(e, used);
    if (op.region) mark_vars(*op.region, used);
    if (op.region2) mark_vars(*op.region2, used);
    for (const Block& body : op.bodies) mark_vars(body, used);
  }
}

// Returns whether there was anything to drop, since each may have been the reader of another.
bool prune(Block& block, const std::vector<bool>& used) {
  bool changed = false;
  for (Op& op : block) {
    for (Block& body : op.bodies) changed |= prune(body, used);
  }
  auto idle = [&](const Op& op) {
    if (op.code == OpCode::kLet) return !used[static_cast<std::size_t>(op.var)];
    return !op.bodies.empty() && std::all_of(op.bodies.begin(), op.bodies.end(),
                                             [](const Block& body) { return body.empty(); });
  };
  return std::erase_if(block, idle) > 0 || changed;
}

}  // namespace

void prune(const Program& program, Block& block) {
  for (bool changed = true; changed;) {
    std::vector<bool> used(program.vars.size(), false);
    mark_vars(block, used);
    changed = prune(block, used);
  }
}

}  // namespace stretto
