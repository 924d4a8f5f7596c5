#include "stretto/proof/local_roles.h"

#include <algorithm>
#include <cstdint>
#include <set>
#include <vector>

#include "stretto/base/errors.h"
#include "stretto/ir/op_info.h"
#include "stretto/proof/expand_state.h"
#include "stretto/proof/expand_syncs.h"
#include "stretto/proof/loop_fold.h"
#include "stretto/proof/open_loops.h"

namespace stretto {
namespace {

std::size_t at(int i) { return static_cast<std::size_t>(i); }

bool goes_by_only(const Expr& expr, const std::set<int>& vars) {
  const ExprNode& n = expr.node();
  if (n.op == ExprOp::kTable) return false;
  if (n.op == ExprOp::kVar) return vars.count(static_cast<int>(n.value)) != 0;
  return std::all_of(n.args.begin(), n.args.end(),
                     [&](const Expr& arg) { return goes_by_only(arg, vars); });
}

bool all_go_by_only(const std::vector<Expr>& exprs, const std::set<int>& vars) {
  return std::all_of(exprs.begin(), exprs.end(),
                     [&](const Expr& e) { return !e.has_value() || goes_by_only(e, vars); });
}

// Calls fn(expr) for all that the operations go by, bodies included.
template <typename Fn>
void for_each_expr(const Block& block, const Fn& fn) {
  for (const Op& op : block) {
    for (const Expr& e : op.exprs) {
      if (e.has_value()) fn(e);
    }
    for (const auto* region : {&op.region, &op.region2}) {
      if (!region->has_value()) continue;
      for (const Expr* e : {&(*region)->rank, &(*region)->row_end, &(*region)->col_end}) {
        if (e->has_value()) fn(*e);
      }
      for (const Expr& e : (*region)->origin) fn(e);
    }
    for (const Block& body : op.bodies) for_each_expr(body, fn);
  }
}

// What a tile does with slots and products is the same in every tile, on every rank, at every size:
// `known` are variables of loops around it, which are.
bool is_steady(const Block& block, std::set<int> known, const Program& program) {
  return std::all_of(block.begin(), block.end(), [&](const Op& op) {
    auto kind_of = [&] { return program.tensors[at(op.region->tensor)].kind; };
    if (op.region2) return false;
    switch (op.code) {
      case OpCode::kLet:
        return true;
      case OpCode::kLoop: {
        std::set<int> inner = known;
        inner.insert(op.var);
        return all_go_by_only(op.exprs, known) && is_steady(op.bodies[0], inner, program);
      }
      case OpCode::kWhen:
        if (is_register_choice(op)) return true;
        return all_go_by_only(op.exprs, known) && is_steady(op.bodies[0], known, program) &&
               is_steady(op.bodies[1], known, program);
      case OpCode::kLoad:
        return reads_own_inputs({op}, program);
      case OpCode::kPipePut:
        return op.operands.empty() && reads_own_inputs({op}, program);
      case OpCode::kStore:
        return kind_of() == TensorKind::kOutput;
      case OpCode::kPipeFill:
      case OpCode::kPipeGet:
      case OpCode::kPipeRelease:
        return !op.region;
      case OpCode::kDotAsync:
      case OpCode::kAwait:
        return all_go_by_only(op.exprs, known);
      default:
        return op.bodies.empty() && !op.region && !op_info(op.code).synchronises &&
               op_info(op.code).schedule_level;
    }
  });
}

// Slots are put by a pipe's producer alone, and got and released by its consumer.
bool keeps_sides(const Block& block, int agent, const Role& role) {
  return std::all_of(block.begin(), block.end(), [&](const Op& op) {
    if (passes_slot(op)) {
      const Pipe& pipe = role.pipes[at(op.symbol)];
      bool puts = op.code == OpCode::kPipePut || op.code == OpCode::kPipeFill;
      if (agent != (puts ? pipe.producer : pipe.consumer)) return false;
    }
    return std::all_of(op.bodies.begin(), op.bodies.end(),
                       [&](const Block& body) { return keeps_sides(body, agent, role); });
  });
}

class TileWalk {
 public:
  TileWalk(ExpandState& state, SyncExpander& syncs) : state_(state), syncs_(syncs) {}

  void block(const Block& ops) {
    for (const Op& op : ops) walk(op);
  }

 private:
  void walk(const Op& op) {
    if (op.code == OpCode::kWhen && is_register_choice(op)) return either(op);
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

  // Of registers, whichever way it goes.
  void either(const Op& when) {
    for (const Block& body : when.bodies) {
      for (const Op& op : body) {
        for (int reg : op.operands) syncs_.read_register(op, reg);
        if (op.code == OpCode::kWhen) either(op);
      }
    }
  }

  ExpandState& state_;
  SyncExpander& syncs_;
};

// Of the tile number, by the name of its variable.
struct GroupedOrder {
  Expr rows;                         // of tiles, as sizes make them
  std::int64_t group = 0, cols = 0;  // of rows; of tiles in a row
};

// t % (G N) / min(R - t / (G N) * G, G): a tile's column where G rows at a time are taken column
// by column, the last ones as many as are left.
std::optional<GroupedOrder> grouped_order(const Expr& column, const Expr& t) {
  const ExprNode& n = column.node();
  if (n.op != ExprOp::kFloorDiv) return {};
  const ExprNode &in_group = n.args[0].node(), &rows = n.args[1].node();
  bool forms = in_group.op == ExprOp::kMod && in_group.args[0].same(t) &&
               in_group.args[1].is_const() && rows.op == ExprOp::kMin && rows.args[1].is_const() &&
               rows.args[0].node().op == ExprOp::kSub;
  if (!forms) return {};
  GroupedOrder out{.rows = rows.args[0].node().args[0], .group = rows.args[1].const_value()};
  std::int64_t tiles = in_group.args[1].const_value();
  if (out.group < 1 || tiles < 1 || tiles % out.group != 0) return {};
  out.cols = tiles / out.group;
  Expr left = out.rows - t / Expr(tiles) * Expr(out.group);
  Expr whole = t % Expr(tiles) / Expr::make(ExprOp::kMin, {left, Expr(out.group)});
  return whole.same(column) ? std::optional(out) : std::nullopt;
}

Expr grouped_row(const GroupedOrder& of, const Expr& t) {
  Expr tiles = of.group * of.cols;
  Expr first = t / tiles * Expr(of.group);
  return first + t % tiles % Expr::make(ExprOp::kMin, {of.rows - first, Expr(of.group)});
}

// The same tiles row by row, where all agents find row and column as above and go by nothing else.
TileOrder row_by_row(const Role& role) {
  TileOrder out;
  Expr t = Expr::var(role.tile_var);
  for (const Agent& agent : role.agents) {
    std::optional<GroupedOrder> grouped;
    std::set<const Op*> found;
    for (const Op& op : agent.body) {
      if (op.code != OpCode::kLet) continue;
      if (auto known = grouped_order(op.exprs[0], t)) {
        if (grouped) return {};
        grouped = known;
        found.insert(&op);
        out.values[op.var] = t % Expr(known->cols);
      }
    }
    bool fits = grouped && !uses_var(grouped->rows, role.tile_var) &&
                (grouped->rows * Expr(grouped->cols)).same(role.num_tiles);
    if (grouped && !fits) return {};
    for (const Op& op : agent.body) {
      bool row = grouped && op.code == OpCode::kLet && op.exprs[0].same(grouped_row(*grouped, t));
      if (!row) continue;
      found.insert(&op);
      out.values[op.var] = t / Expr(grouped->cols);
    }
    bool others = false;
    for (const Op& op : agent.body) {
      if (found.count(&op) != 0) continue;
      for_each_expr({op}, [&](const Expr& e) { others |= uses_var(e, role.tile_var); });
    }
    if (others) return {};
  }
  return out;
}

// Divided by what goes by a size.
bool divides_by(const Expr& expr, const std::set<int>& sized) {
  const ExprNode& n = expr.node();
  bool divides = (n.op == ExprOp::kFloorDiv || n.op == ExprOp::kMod) && uses_any(n.args[1], sized);
  return divides || std::any_of(n.args.begin(), n.args.end(),
                                [&](const Expr& arg) { return divides_by(arg, sized); });
}

// A tile that is there at other sizes only has a value for all that it goes by.
bool has_values_anyway(const Role& role, const TileOrder& order, const Program& program) {
  std::set<int> sized;
  for (std::size_t v = 0; v < program.vars.size(); ++v) {
    VarKind kind = program.vars[v].kind;
    bool steady = kind == VarKind::kRank || kind == VarKind::kTile || kind == VarKind::kLoop;
    if (!steady && order.values.count(static_cast<int>(v)) == 0) sized.insert(static_cast<int>(v));
  }
  bool divided = false;
  for (const Agent& agent : role.agents) {
    for (const Op& op : agent.body) {
      if (op.code == OpCode::kLet && order.values.count(op.var) != 0) continue;
      for_each_expr({op}, [&](const Expr& e) { divided |= divides_by(e, sized); });
    }
  }
  return !divided;
}

}  // namespace

bool LocalRoles::is_local(const Role& role) const {
  std::vector<int> rings = rings_of(role);
  bool shares = std::any_of(rings.begin(), rings.end(), [](int ring) { return ring >= 0; });
  bool plain = !shares && role.barriers.empty();
  for (std::size_t a = 0; plain && a < role.agents.size(); ++a) {
    const Block& body = role.agents[a].body;
    plain = is_steady(body, {}, program_) && keeps_sides(body, static_cast<int>(a), role);
  }
  for (const Pipe& pipe : role.pipes) plain = plain && pipe.producer != pipe.consumer;
  return plain && comes_through(role);
}

bool LocalRoles::comes_through(const Role& role) const {
  ExpandState state(program_, extent_bounds(program_), nullptr, nullptr);
  SyncExpander syncs(state, /*by_units=*/false);
  auto role_idx = static_cast<int>(&role - program_.roles.data());
  syncs.start_worker(role_idx, 0);
  try {
    for (std::size_t a = 0; a < role.agents.size(); ++a) {
      state.recorder.start_agent({.rank = 0,
                                  .phase = Phase::kRoles,
                                  .role = role_idx,
                                  .worker = 0,
                                  .agent = static_cast<int>(a)});
      syncs.start_agent();
      TileWalk(state, syncs).block(role.agents[a].body);
      if (syncs.awaits_dots()) return false;
    }
  } catch (const Rejected&) {  // said by those that walk every tile
    return false;
  }
  return syncs.even() && come_through(state.graph, 0);
}

const LocalRoles::Local& LocalRoles::of(const Role& role) {
  auto [it, is_new] = known_.try_emplace(&role);
  if (!is_new) return it->second;
  Local& local = it->second;
  local.is_local = is_local(role);
  if (local.is_local) local.order = row_by_row(role);
  local.counts_open = has_values_anyway(role, local.order, program_);
  return local;
}

}  // namespace stretto
