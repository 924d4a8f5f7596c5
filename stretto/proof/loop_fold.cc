#include "stretto/proof/loop_fold.h"

#include <algorithm>
#include <map>
#include <set>

#include "stretto/ir/op_info.h"

namespace stretto {
namespace {

bool goes_by_only(const Expr& expr, const std::set<int>& vars) {
  const ExprNode& n = expr.node();
  if (n.op == ExprOp::kTable) return false;
  if (n.op == ExprOp::kVar) return vars.count(static_cast<int>(n.value)) != 0;
  return std::all_of(n.args.begin(), n.args.end(),
                     [&](const Expr& arg) { return goes_by_only(arg, vars); });
}

bool is_affine(const Expr& expr, const std::set<int>& moving) {
  if (!uses_any(expr, moving)) return !uses_table(expr);
  const ExprNode& n = expr.node();
  switch (n.op) {
    case ExprOp::kVar:
      return true;
    case ExprOp::kAdd:
    case ExprOp::kSub:
      return is_affine(n.args[0], moving) && is_affine(n.args[1], moving);
    case ExprOp::kMul:
      return is_affine(n.args[0], moving) && is_affine(n.args[1], moving) &&
             (!uses_any(n.args[0], moving) || !uses_any(n.args[1], moving));
    default:
      return false;
  }
}

bool uses_any(const Region& region, const std::set<int>& vars) {
  auto used = [&](const Expr& e) { return uses_any(e, vars); };
  return used(region.rank) || used(region.row_end) || used(region.col_end) ||
         std::any_of(region.origin.begin(), region.origin.end(), used);
}

// Straight-line bodies only, but for what registers hold. A copy's source box depends on the masks
// of both sides; a variable used before its `let` carries a value from one iteration to the next.
// `moving`: gets the loop's variable and what is computed from it.
bool is_affine_loop(const Op& loop, std::set<int>& moving) {
  moving = {loop.var};
  std::set<int> carried;
  for (const Op& op : loop.bodies[0]) {
    bool straight = op.bodies.empty() || is_register_choice(op);
    if (!straight || op.code == OpCode::kCopy) return false;
    if (op.code == OpCode::kLet) carried.insert(op.var);
  }
  for (const Op& op : loop.bodies[0]) {
    for (const Expr& e : op.exprs) {
      if (uses_any(e, carried)) return false;
    }
    if (op.code == OpCode::kLet) {
      if (!is_affine(op.exprs[0], moving)) return false;
      if (uses_any(op.exprs[0], moving)) moving.insert(op.var);
      carried.erase(op.var);
    }
    if (op.region && (!is_affine(*op.region, moving) || uses_any(*op.region, carried)))
      return false;
  }
  return true;
}

void tensors_of(const Block& block, std::set<int>& read, std::set<int>& written) {
  for (const Op& op : block) {
    bool writes = op.code == OpCode::kStore || op.code == OpCode::kStoreRows ||
                  op.code == OpCode::kReduceStore;
    if (op.region) (writes ? written : read).insert(op.region->tensor);
    if (op.region2) written.insert(op.region2->tensor);
    if (op.code == OpCode::kReduceStore) read.insert(op.region->tensor);
    for (const Block& body : op.bodies) tensors_of(body, read, written);
  }
}

// Comparisons that, having one truth at two iterations, have it at all in between.
bool is_comparison(const Expr& condition, int loop_var) {
  const ExprNode& n = condition.node();
  return (n.op == ExprOp::kLt || n.op == ExprOp::kLe) && is_affine(n.args[0], {loop_var}) &&
         is_affine(n.args[1], {loop_var});
}

int first_pipe(const Block& body) {
  int first = -1;
  for (const Op& op : body) {
    if (passes_slot(op) && (first < 0 || op.symbol < first)) first = op.symbol;
  }
  return first;
}

void registers_of(const Op& op, std::set<int>& registers) {
  registers.insert(op.operands.begin(), op.operands.end());
  if (op.result >= 0) registers.insert(op.result);
  for (const Block& body : op.bodies) {
    for (const Op& inner : body) registers_of(inner, registers);
  }
}

// Whether the condition decides about registers alone, none of which gets a slot in the body.
bool is_free_choice(const Op& when, const Block& body, std::set<int>& registers) {
  if (!is_register_choice(when)) return false;
  std::set<int> own;
  registers_of(when, own);
  bool slots = std::any_of(body.begin(), body.end(), [&](const Op& op) {
    return op.code == OpCode::kPipeGet && own.count(op.result) != 0;
  });
  if (!slots) registers.insert(own.begin(), own.end());
  return !slots;
}

bool is_piped(const Op& loop, LoopShape& shape) {
  if (!only_passes_slots(loop.bodies[0])) return false;
  Op plain = loop;
  std::erase_if(plain.bodies[0], [](const Op& op) { return op.code == OpCode::kWhen; });
  if (!is_affine_loop(plain, shape.moving)) return false;
  std::set<int> own;  // values of the body, which conditions may not depend on
  for (const Op& op : loop.bodies[0]) {
    if (op.code == OpCode::kLet) own.insert(op.var);
    if (op.code != OpCode::kWhen) continue;
    bool free = is_free_choice(op, loop.bodies[0], shape.chosen);
    (free ? shape.choices : shape.conditions).push_back(op.exprs[0]);
  }
  auto told_by_ends = [&](const Expr& c) {
    return is_comparison(c, loop.var) && !uses_any(c, own);
  };
  return std::all_of(shape.conditions.begin(), shape.conditions.end(), told_by_ends) &&
         std::all_of(shape.choices.begin(), shape.choices.end(), told_by_ends);
}

}  // namespace

bool is_register_choice(const Op& op) {
  if (op.code != OpCode::kWhen) return false;
  return std::all_of(op.bodies.begin(), op.bodies.end(), [](const Block& body) {
    return std::all_of(body.begin(), body.end(), [](const Op& o) {
      const OpInfo& info = op_info(o.code);
      bool plain = o.bodies.empty() && !o.region && !info.synchronises && info.schedule_level;
      bool counted = o.code == OpCode::kLet || o.code == OpCode::kDotAsync;
      return is_register_choice(o) || (plain && !counted && o.code != OpCode::kAwait);
    });
  });
}

bool is_affine(const Region& region, const std::set<int>& moving) {
  auto fixed = [&](const Expr& e) { return !e.has_value() || !uses_any(e, moving); };
  return fixed(region.rank) && fixed(region.row_end) && fixed(region.col_end) &&
         std::all_of(region.origin.begin(), region.origin.end(),
                     [&](const Expr& e) { return is_affine(e, moving); });
}

bool all_go_by_only(const std::vector<Expr>& exprs, const std::set<int>& vars) {
  return std::all_of(exprs.begin(), exprs.end(),
                     [&](const Expr& e) { return !e.has_value() || goes_by_only(e, vars); });
}

bool uses_any(const Expr& expr, const std::set<int>& vars) {
  if (!expr.has_value()) return false;
  const ExprNode& n = expr.node();
  if (n.op == ExprOp::kVar) return vars.count(static_cast<int>(n.value)) != 0;
  return std::ranges::any_of(n.args, [&](const Expr& arg) { return uses_any(arg, vars); });
}

bool passes_slot(const Op& op) {
  return op.code >= OpCode::kPipePut && op.code <= OpCode::kPipeRelease;
}

bool synchronises(const Block& block) {
  return std::any_of(block.begin(), block.end(), [](const Op& op) {
    return op_info(op.code).synchronises ||
           std::any_of(op.bodies.begin(), op.bodies.end(), synchronises);
  });
}

bool only_passes_slots(const Block& body, bool in_condition) {
  return std::all_of(body.begin(), body.end(), [&](const Op& op) {
    switch (op.code) {
      case OpCode::kPipeGet:
      case OpCode::kPipeRelease:
        return true;
      case OpCode::kPipePut:
      case OpCode::kLoad:
      case OpCode::kLet:  // what it fixes would be left out with the iteration
        return !in_condition;
      case OpCode::kWhen:
        return !in_condition && only_passes_slots(op.bodies[0], true) &&
               only_passes_slots(op.bodies[1], true);
      default:
        return op.bodies.empty() && !op.region && !op_info(op.code).synchronises;
    }
  });
}

bool reads_own_inputs(const Block& body, const Program& program) {
  return std::all_of(body.begin(), body.end(), [&](const Op& op) {
    return !op.region ||
           nobody_writes(program.tensors[static_cast<std::size_t>(op.region->tensor)]);
  });
}

bool only_reads_own_inputs(const Block& body, const Program& program) {
  return reads_own_inputs(body, program) && std::ranges::all_of(body, [](const Op& op) {
           if (op.code == OpCode::kLet) return true;
           if (op.code == OpCode::kLoad) return !op.region->rank.has_value();
           const OpInfo& info = op_info(op.code);
           bool plain =
               op.bodies.empty() && !op.region && !info.synchronises && info.schedule_level;
           return is_register_choice(op) ||
                  (plain && op.code != OpCode::kDotAsync && op.code != OpCode::kAwait);
         });
}

std::int64_t slots_of_iteration(const Block& body) {
  std::map<int, std::int64_t> passed;
  std::int64_t most = 1;
  for (const Op& op : body) {
    bool passes = op.code == OpCode::kPipePut || op.code == OpCode::kPipeGet;
    if (passes) most = std::max(most, ++passed[op.symbol]);
  }
  return most;
}

const LoopShape& LoopShapes::of(const Op& op) {
  auto [it, is_new] = shapes_.try_emplace(&op);
  if (!is_new) return it->second;
  LoopShape& shape = it->second;
  for (const Block& body : op.bodies) shape.synchronises |= synchronises(body);
  if (op.code != OpCode::kLoop) return shape;
  std::set<int> read, written;
  tensors_of(op.bodies[0], read, written);
  shape.writes = !written.empty();
  if (shape.synchronises) {
    shape.piped = is_piped(op, shape);
    shape.slots = slots_of_iteration(op.bodies[0]);
    shape.pipe = first_pipe(op.bodies[0]);
    return shape;
  }
  shape.ordered =
      std::any_of(written.begin(), written.end(), [&](int t) { return read.count(t) != 0; });
  shape.affine = !shape.ordered && is_affine_loop(op, shape.moving);
  shape.chooses = std::any_of(op.bodies[0].begin(), op.bodies[0].end(), is_register_choice);
  return shape;
}

Box clip(const LooseBox& box) {
  Box out;
  for (std::size_t d = 0; d < kMaxTensorDims; ++d) {
    out.lo[d] = std::max(box.origin[d], box.limit.lo[d]);
    out.hi[d] = std::min(box.origin[d] + box.size[d], box.limit.hi[d]);
  }
  return out;
}

std::optional<LooseBox> fold_affine(const LooseBox& first, const LooseBox& second,
                                    std::int64_t trips, bool is_write) {
  LooseBox out = first;
  int num_moving = 0;
  for (std::size_t d = 0; d < kMaxTensorDims; ++d) {
    std::int64_t step = second.origin[d] - first.origin[d];
    if (step == 0) continue;
    if (++num_moving > 1) return std::nullopt;
    std::int64_t distance = step < 0 ? -step : step;
    if (distance > first.size[d] || (is_write && distance != first.size[d])) return std::nullopt;
    out.size[d] += distance * (trips - 1);
    if (step < 0) out.origin[d] += step * (trips - 1);
  }
  if (num_moving == 0 && is_write && trips > 1) return std::nullopt;
  return out;
}

bool extend_box(Box& box, const Box& next, bool is_write) {
  if (box == next) return !is_write;
  std::size_t moving = kMaxTensorDims;
  for (std::size_t d = 0; d < kMaxTensorDims; ++d) {
    if (box.lo[d] == next.lo[d] && box.hi[d] == next.hi[d]) continue;
    if (moving != kMaxTensorDims) return false;
    moving = d;
  }
  bool touches = next.lo[moving] <= box.hi[moving] && box.lo[moving] <= next.hi[moving];
  bool disjoint = next.lo[moving] >= box.hi[moving] || box.lo[moving] >= next.hi[moving];
  if (!touches || (is_write && !disjoint)) return false;
  box.lo[moving] = std::min(box.lo[moving], next.lo[moving]);
  box.hi[moving] = std::max(box.hi[moving], next.hi[moving]);
  return true;
}

}  // namespace stretto
