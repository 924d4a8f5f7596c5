#include "stretto/proof/part_turns.h"

#include <algorithm>
#include <set>
#include <utility>

#include "stretto/base/at.h"
#include "stretto/ir/block_ops.h"
#include "stretto/ir/expr_arithmetic.h"
#include "stretto/ir/limits.h"
#include "stretto/ir/op_info.h"
#include "stretto/ir/tables.h"
#include "stretto/proof/instance_graph.h"
#include "stretto/proof/loop_fold.h"
#include "stretto/proof/one_size.h"

namespace stretto {
namespace {

// How what is computed from a loop's variable moves with it: by `step`, and from no less than zero.
std::optional<std::int64_t> step_of(const Expr& expr, int loop_var, const Program& program) {
  const ExprNode& n = expr.node();
  if (n.op == ExprOp::kConst) return n.value >= 0 ? std::optional<std::int64_t>(0) : std::nullopt;
  if (n.op == ExprOp::kVar) {
    if (n.value == loop_var) return 1;
    bool positive = program.vars[at(n.value)].kind == VarKind::kTile ||
                    program.vars[at(n.value)].kind == VarKind::kRank;
    return positive ? std::optional<std::int64_t>(0) : std::nullopt;
  }
  if (n.op == ExprOp::kMod || n.op == ExprOp::kFloorDiv) {
    std::optional<std::int64_t> of = step_of(n.args[0], loop_var, program);
    bool still = of == 0 && n.args[1].is_const() && n.args[1].const_value() > 0;
    return still ? of : std::nullopt;
  }
  if (n.op != ExprOp::kAdd && n.op != ExprOp::kMul) return {};
  std::optional<std::int64_t> a = step_of(n.args[0], loop_var, program);
  if (n.op == ExprOp::kMul) {
    bool scaled = a && n.args[1].is_const() && n.args[1].const_value() >= 0;
    return scaled ? std::optional(apply(ExprOp::kMul, *a, n.args[1].const_value())) : std::nullopt;
  }
  std::optional<std::int64_t> b = step_of(n.args[1], loop_var, program);
  return a && b ? std::optional(*a + *b) : std::nullopt;
}

// The terms of a sum.
void terms_of(const Expr& sum, std::vector<Expr>& terms) {
  if (sum.node().op != ExprOp::kAdd) return terms.push_back(sum);
  for (const Expr& arg : sum.node().args) terms_of(arg, terms);
}

const Op* only_condition(const Op& loop) {
  const Op* condition = nullptr;
  for (const Op& op : loop.bodies[0]) {
    bool reads = op.code != OpCode::kLet || uses_table(op.exprs[0]);
    if (!reads) continue;
    if (op.code != OpCode::kWhen || condition != nullptr || !op.bodies[1].empty()) return nullptr;
    condition = &op;
  }
  return condition;
}

// Variables that a loop sets: no iteration takes over what an earlier one has set, and nobody goes
// by them behind the loop.
bool keeps_to_itself(const Op& loop, const Agent& agent) {
  std::set<int> set_in = {loop.var}, later;
  for_each_op(loop.bodies[0], [&](const Op& op) {
    if (op.code == OpCode::kLet || op.code == OpCode::kLoop) set_in.insert(op.var);
  });
  later = set_in;
  later.erase(loop.var);
  bool alone = true;
  for_each_op(loop.bodies[0], [&](const Op& op) {
    for_each_expr(op, [&](const Expr& e) { alone &= !uses_any(e, later); });
    if (op.code == OpCode::kLet || op.code == OpCode::kLoop) later.erase(op.var);
  });
  auto beside = [&](const auto& self, const Block& block) -> void {
    for (const Op& op : block) {
      if (&op == &loop) continue;
      for_each_expr(op, [&](const Expr& e) { alone &= !uses_any(e, set_in); });
      for (const Block& body : op.bodies) self(self, body);
    }
  };
  beside(beside, agent.body);
  for_each_expr(loop, [&](const Expr& e) { alone &= !uses_any(e, set_in); });
  return alone;
}

bool writes(const Op& op) {
  switch (op.code) {
    case OpCode::kLoad:
    case OpCode::kLoadRows:
    case OpCode::kPipePut:
    case OpCode::kLoadPacket:
      return false;
    default:
      return true;
  }
}

}  // namespace

bool collect_lets(const Block& block, std::vector<Expr>& lets) {
  bool once = true;
  for (const Op& op : block) {
    if (op.code == OpCode::kLet) {
      once &= !lets[at(op.var)].has_value();
      lets[at(op.var)] = op.exprs[0];
    }
    for (const Block& body : op.bodies) once &= collect_lets(body, lets);
  }
  return once;
}

Expr with_lets(const Expr& expr, const std::vector<Expr>& lets) {
  Expr out = expr;
  for (int depth = 0; depth < 16; ++depth) {
    Expr next = substitute(out, lets);
    if (next.same(out)) return out;
    out = next;
  }
  return out;
}

std::optional<PartRows> part_rows(const Op& loop, const std::vector<Expr>& lets,
                                  const Program& program) {
  if (loop.code != OpCode::kLoop || !loop.exprs[0].is_const(0)) return {};
  const Op* condition = only_condition(loop);
  if (condition == nullptr || condition->exprs[0].node().op != ExprOp::kLt) return {};
  const ExprNode& less = condition->exprs[0].node();
  Expr row = with_lets(less.args[0], lets), end = with_lets(less.args[1], lets);
  const ExprNode& entry = end.node();
  if (entry.op != ExprOp::kTable || entry.args.size() != 1) return {};
  const Tensor& table = program.tensors[at(entry.value)];
  bool parts = table.contract.kind == ContractKind::kPartition &&
               table.kind == TensorKind::kInput && table.contract.lo.is_const(0);
  if (!parts) return {};
  std::vector<Expr> terms;
  terms_of(row, terms);
  PartRows out{.table = static_cast<int>(entry.value), .condition = condition};
  int begins = 0;
  for (const Expr& term : terms) {
    const ExprNode& n = term.node();
    if (n.op == ExprOp::kTable) {
      bool begin = n.value == entry.value && (n.args[0] + Expr(1)).same(entry.args[0]);
      if (!begin) return {};
      ++begins;
      continue;
    }
    std::optional<std::int64_t> moves = step_of(term, loop.var, program);
    if (!moves) return {};
    out.step += *moves;
  }
  return begins == 1 ? std::optional(out) : std::nullopt;
}

PartTurns::PartTurns(const Program& program) : program_(program), rows_(program.tensors.size()) {
  bool parts = std::ranges::any_of(
      program.tensors, [](const Tensor& t) { return t.contract.kind == ContractKind::kPartition; });
  if (!parts) return;
  for (const Role& role : program.roles) {
    for (const Agent& agent : role.agents) {
      std::vector<Expr> lets(program.vars.size());
      if (collect_lets(agent.body, lets)) look_for_loops(agent.body, agent, lets);
    }
  }
  std::map<const Op*, Store> known;
  for (const auto& [loop, stores] : stores_) {
    for (const Store& s : stores) known.emplace(s.op, s);
  }
  // Tensors that something else writes, too, or that loops write in different ways, are seen as
  // others are.
  std::set<int> written, elsewhere;
  auto look = [&](const Op& op) {
    for (const auto* region : {&op.region, &op.region2}) {
      if (!region->has_value() || !writes(op)) continue;
      int tensor = (*region)->tensor;
      auto store = known.find(&op);
      if (store == known.end()) {
        elsewhere.insert(tensor);
        continue;
      }
      std::optional<Rows>& rows = rows_[at(tensor)];
      if (written.insert(tensor).second) rows = dealt_out(tensor);
      if (rows && rows->step == 0) rows->step = store->second.step;
      bool alike = rows && rows->table == store->second.table && rows->dim == op.region->row_dim &&
                   rows->step == store->second.step;
      if (!alike) elsewhere.insert(tensor);
    }
  };
  for (const Agent* edge : {&program.on_start, &program.on_end}) for_each_op(edge->body, look);
  for (const Role& role : program.roles) {
    for (const Agent& agent : role.agents) for_each_op(agent.body, look);
  }
  for (int tensor : elsewhere) rows_[at(tensor)].reset();
  std::erase_if(turns_, [&](const auto& loop) {
    return std::ranges::any_of(stores_.at(loop.first), [&](const Store& s) {
      return !rows_[at(s.op->region->tensor)].has_value();
    });
  });
}

const PartRows* PartTurns::of(const Op& loop) const {
  auto it = turns_.find(&loop);
  return it == turns_.end() ? nullptr : &it->second;
}

void PartTurns::look_for_loops(const Block& block, const Agent& agent,
                               const std::vector<Expr>& lets) {
  for (const Op& op : block) {
    if (op.code == OpCode::kLoop) look_at(op, agent, lets);
    for (const Block& body : op.bodies) look_for_loops(body, agent, lets);
  }
}

void PartTurns::look_at(const Op& loop, const Agent& agent, const std::vector<Expr>& lets) {
  std::optional<PartRows> rows = part_rows(loop, lets, program_);
  bool may = rows && rows->step > 0 && keeps_to_itself(loop, agent) && reaches_all(loop, *rows);
  if (!may) return;
  std::set<int> moving = {loop.var};
  std::vector<Store> stores;
  for (const Op& op : loop.bodies[0]) {
    if (op.code != OpCode::kLet) continue;
    if (uses_table(op.exprs[0])) return;
    if (uses_any(op.exprs[0], moving)) moving.insert(op.var);
  }
  if (!fits(rows->condition->bodies[0], moving, *rows, lets, stores)) return;
  turns_[&loop] = *rows;
  stores_[&loop] = std::move(stores);
}

// Nothing but what is stored goes by the iteration.
bool PartTurns::fits(const Block& block, std::set<int>& moving, const PartRows& rows,
                     const std::vector<Expr>& lets, std::vector<Store>& stores) const {
  auto reads_inputs = [&](const Op& op) {
    return op.region && !op.region2 && !op.region->rank.has_value() &&
           nobody_writes(program_.tensors[at(op.region->tensor)]);
  };
  auto still = [&](const Expr& e) { return !uses_table(e) && !uses_any(e, moving); };
  return std::ranges::all_of(block, [&](const Op& op) {
    bool tables = false;
    for_each_expr(op, [&](const Expr& e) { tables |= uses_table(e); });
    if (tables) return false;
    switch (op.code) {
      case OpCode::kLet:
        if (uses_any(op.exprs[0], moving)) moving.insert(op.var);
        return true;
      case OpCode::kPipePut:
      case OpCode::kLoad:
        return reads_inputs(op);
      case OpCode::kPipeGet:
      case OpCode::kPipeRelease:
        return !op.region;
      case OpCode::kStore:
        stores.push_back({.op = &op, .table = rows.table, .step = rows.step});
        return fits(op, moving, rows, lets);
      case OpCode::kLoop:
      case OpCode::kWhen:
        return std::ranges::all_of(op.exprs, still) &&
               std::ranges::all_of(op.bodies, [&](const Block& body) {
                 return fits(body, moving, rows, lets, stores);
               });
      case OpCode::kDotAsync:
        return true;
      case OpCode::kAwait:
        return op.exprs[0].is_const();
      default:
        return op.bodies.empty() && !op.region && !op.region2 && !op_info(op.code).synchronises &&
               op_info(op.code).schedule_level;
    }
  });
}

// It begins where the iteration does and ends with the part, and the next one begins behind it.
bool PartTurns::fits(const Op& store, const std::set<int>& moving, const PartRows& rows,
                     const std::vector<Expr>& lets) const {
  const Region& region = *store.region;
  const ExprNode& less = rows.condition->exprs[0].node();
  if (region.row_dim < 0 || region.rank.has_value() || !region.row_end.has_value()) return false;
  bool own_rows =
      with_lets(region.origin[at(region.row_dim)], lets).same(with_lets(less.args[0], lets)) &&
      with_lets(region.row_end, lets).same(with_lets(less.args[1], lets)) &&
      region.rows <= rows.step;
  for (std::size_t d = 0; d < region.origin.size(); ++d) {
    if (static_cast<int>(d) != region.row_dim) own_rows &= !uses_any(region.origin[d], moving);
  }
  return own_rows && (!region.col_end.has_value() || !uses_any(region.col_end, moving));
}

// At each size there are as many iterations as a part may have rows for.
bool PartTurns::reaches_all(const Op& loop, const PartRows& rows) const {
  Expr most = program_.tensors[at(rows.table)].contract.hi - Expr(1);
  std::vector<int> sizes;
  for (std::size_t v = 0; v < program_.vars.size(); ++v) {
    auto var = static_cast<int>(v);
    bool size = program_.vars[v].kind == VarKind::kExtent;
    if (size && (uses_var(loop.exprs[1], var) || uses_var(most, var))) sizes.push_back(var);
  }
  return sizes.size() == 1 && OfSize(program_, sizes[0]).reaches(loop.exprs[1], rows.step, most);
}

// By some partition of all of its rows, whatever the sizes are.
std::optional<PartTurns::Rows> PartTurns::dealt_out(int tensor) const {
  const Tensor& t = program_.tensors[at(tensor)];
  if (t.packet || is_table(t) || t.shape.size() >= kMaxTensorDims) return {};
  std::optional<Rows> out;
  for (const auto& [loop, stores] : stores_) {
    for (const Store& s : stores) {
      const Region& region = *s.op->region;
      if (region.tensor != tensor || out) continue;
      const Tensor& table = program_.tensors[at(s.table)];
      bool whole = table.contract.lo.is_const(0) && table.shape.size() == 1 &&
                   table.shape[0].is_const() && table.shape[0].const_value() > 1 &&
                   !uses_var(table.contract.hi, 0) &&
                   (t.shape[at(region.row_dim)] + Expr(1)).same(table.contract.hi);
      if (!whole) return {};
      out = {.table = s.table,
             .dim = region.row_dim,
             .step = 0,
             .parts = table.shape[0].const_value() - 1};
    }
  }
  return out;
}

}  // namespace stretto
