#include "stretto/proof/local_roles.h"

#include <algorithm>
#include <cstdint>
#include <set>
#include <vector>

#include "stretto/base/at.h"
#include "stretto/base/errors.h"
#include "stretto/ir/block_ops.h"
#include "stretto/proof/expand_state.h"
#include "stretto/proof/expand_syncs.h"
#include "stretto/proof/loop_fold.h"
#include "stretto/proof/open_loops.h"
#include "stretto/proof/steady_slots.h"

namespace stretto {
namespace {

// Calls fn(expr) for all that the operation goes by, and those within it.
template <typename Fn>
void for_each_expr_in(const Op& op, const Fn& fn) {
  for_each_expr(op, fn);
  for (const Block& body : op.bodies) {
    for_each_op(body, [&](const Op& inner) { for_each_expr(inner, fn); });
  }
}

// Of inputs, or of state that no launch of the program writes.
bool nobody_writes(int tensor, const Program& program) {
  const Tensor& t = program.tensors[at(tensor)];
  if (stretto::nobody_writes(t)) return true;
  if (t.kind != TensorKind::kState || t.space != Space::kLocal) return false;
  auto touches = [&](const Block& body) {
    return any_op(body, [&](const Op& op) {
      bool reads = op.code == OpCode::kLoad || op.code == OpCode::kPipePut;
      bool here = (op.region && op.region->tensor == tensor) ||
                  (op.region2 && op.region2->tensor == tensor);
      return here && !reads;
    });
  };
  bool touched = touches(program.on_start.body) || touches(program.on_end.body);
  for (const Role& role : program.roles) {
    for (const Agent& agent : role.agents) touched |= touches(agent.body);
  }
  return !touched;
}

bool reads_what_nobody_writes(const Op& op, const Program& program) {
  return !any_op(op, [&](const Op& inner) {
    return inner.region && !nobody_writes(inner.region->tensor, program);
  });
}

const std::set<int>* slots_of_loop(const Op& op, OpenLoops* loops) {
  return loops == nullptr ? nullptr : loops->slots_of_loop(op);
}

// Of all loops that sizes end.
std::set<int> slots_of_loops(const Block& block, OpenLoops* loops) {
  std::set<int> out;
  for_each_op(block, [&](const Op& op) {
    const std::set<int>* slots = slots_of_loop(op, loops);
    if (slots != nullptr) out.insert(slots->begin(), slots->end());
  });
  return out;
}

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

// What an operation does to memory, and when, up to the names of variables and pipes.
class Likeness {
 public:
  // `places`: lets that have these values instead.
  Likeness(const Role& role, std::size_t num_turns, const std::map<const Op*, Expr>& places)
      : pipes_of_turn_(static_cast<int>(role.pipes.size() / num_turns)), places_(places) {}

  bool alike(const Block& a, const Block& b) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                      [&](const Op& x, const Op& y) { return alike(x, y); });
  }

 private:
  bool alike(const Op& a, const Op& b) {
    bool same = a.code == b.code && a.result == b.result && a.operands == b.operands;
    if (passes_slot(a)) {
      same = same && a.symbol % pipes_of_turn_ == b.symbol % pipes_of_turn_;
    } else {
      same = same && a.symbol == b.symbol && a.symbol2 == b.symbol2;
    }
    same = same && same_values(a, b) && alike(a.region, b.region) && alike(a.region2, b.region2);
    if (a.code == OpCode::kLet || a.code == OpCode::kLoop) named_[a.var] = b.var;
    return same && std::equal(a.bodies.begin(), a.bodies.end(), b.bodies.begin(), b.bodies.end(),
                              [&](const Block& x, const Block& y) { return alike(x, y); });
  }
  bool same_values(const Op& a, const Op& b) const {
    auto x = places_.find(&a), y = places_.find(&b);
    if (x == places_.end() && y == places_.end()) return alike(a.exprs, b.exprs);
    return x != places_.end() && y != places_.end() && x->second.same(y->second);
  }
  bool alike(const std::vector<Expr>& a, const std::vector<Expr>& b) const {
    return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                      [&](const Expr& x, const Expr& y) { return alike(x, y); });
  }
  bool alike(const std::optional<Region>& a, const std::optional<Region>& b) const {
    if (!a || !b) return !a && !b;
    return a->tensor == b->tensor && a->row_dim == b->row_dim && a->col_dim == b->col_dim &&
           a->rows == b->rows && a->cols == b->cols && alike(a->rank, b->rank) &&
           alike(a->origin, b->origin) && alike(a->row_end, b->row_end) &&
           alike(a->col_end, b->col_end);
  }
  bool alike(const Expr& a, const Expr& b) const {
    if (!a.has_value() || !b.has_value()) return a.has_value() == b.has_value();
    const ExprNode &x = a.node(), &y = b.node();
    std::int64_t value = x.value;
    if (x.op == ExprOp::kVar) {
      auto named = named_.find(static_cast<int>(x.value));
      if (named != named_.end()) value = named->second;
    }
    return x.op == y.op && value == y.value && alike(x.args, y.args);
  }

  int pipes_of_turn_;
  const std::map<const Op*, Expr>& places_;
  std::map<int, int> named_;  // variables of the first in the second
};

// Lets of a body that find a tile's place from its number, and what they are of the same number in
// the other order; no value: what nothing else may go by.
using PlaceLets = std::map<const Op*, Expr>;
struct Placing {
  PlaceLets lets;
  std::vector<Expr> by;  // in which way: bodies with the same find the same place
};

// Of lets that find row and column as grouped_order() says. None where there are none; absent where
// they do not belong together.
std::optional<Placing> grouped_lets(const Block& body, const Role& role, const Expr& tile,
                                    const Expr& num_tiles) {
  std::optional<GroupedOrder> order;
  Placing out;
  Expr t = Expr::var(role.tile_var);
  for (const Op& op : body) {
    if (op.code != OpCode::kLet) continue;
    std::optional<GroupedOrder> known = grouped_order(op.exprs[0], tile);
    if (!known) continue;
    if (order) return {};
    order = known;
    out.lets[&op] = t % Expr(known->cols);
  }
  if (!order) return out;
  out.by = {order->rows, Expr(order->group), Expr(order->cols)};
  bool fits =
      !uses_var(order->rows, role.tile_var) && (order->rows * Expr(order->cols)).same(num_tiles);
  if (!fits) return {};
  for (const Op& op : body) {
    bool row = op.code == OpCode::kLet && op.exprs[0].same(grouped_row(*order, tile));
    if (row) out.lets[&op] = t / Expr(order->cols);
  }
  return out;
}

// Of rows R and columns C, G of them at a time, where the last row comes first: u = t % (R G),
// column t / (R G) G + u % G, and (R - 1 - u / G) times so many elements.
std::optional<Placing> last_row_first(const Block& body, const Role& role, const Expr& tile,
                                      const Expr& num_tiles, std::int64_t group, const Expr& rows) {
  Expr all = num_tiles;  // as a grid of columns of one says it
  const ExprNode* n = &all.node();
  if (n->op == ExprOp::kSub && n->args[1].is_const(1) && n->args[0].node().op == ExprOp::kAdd &&
      n->args[0].node().args[1].is_const(1)) {
    all = Expr(n->args[0].node().args[0]);
    n = &all.node();
  }
  std::int64_t cols = 1;
  if (!all.same(rows)) {
    bool times = n->op == ExprOp::kMul && n->args[0].same(rows) && n->args[1].is_const();
    if (!times) return {};
    cols = n->args[1].const_value();
  }
  if (group < 1 || cols < 1 || cols % group != 0 || uses_var(rows, role.tile_var)) return {};
  Placing out{.lets = {}, .by = {rows, Expr(group), Expr(cols), Expr(-1)}};
  Expr t = Expr::var(role.tile_var), in_group, of_group = rows * Expr(group);
  for (const Op& op : body) {
    if (op.code != OpCode::kLet) continue;
    if (op.exprs[0].same(tile % of_group)) {
      if (in_group.has_value()) return {};
      in_group = Expr::var(op.var);
      out.lets[&op] = Expr();
    }
    if (!in_group.has_value()) continue;
    Expr column = tile / of_group * Expr(group) + in_group % Expr(group);
    Expr row = rows - 1 - in_group / Expr(group);
    const ExprNode& value = op.exprs[0].node();
    if (op.exprs[0].same(column)) out.lets[&op] = t % Expr(cols);
    if (op.exprs[0].same(row)) out.lets[&op] = t / Expr(cols);
    bool elements = value.op == ExprOp::kMul && value.args[0].same(row) && value.args[1].is_const();
    if (elements) out.lets[&op] = t / Expr(cols) * value.args[1];
  }
  return out;
}

// One way or the other in which lets find the place.
std::vector<Placing> ways_to_place(const Block& body, const Role& role, const Expr& tile,
                                   const Expr& num_tiles) {
  std::vector<Placing> out;
  auto add = [&](std::optional<Placing> placing) {
    if (placing) out.push_back(std::move(*placing));
  };
  add(grouped_lets(body, role, tile, num_tiles));
  for (const Op& op : body) {
    bool in_group = op.code == OpCode::kLet && op.exprs[0].node().op == ExprOp::kMod &&
                    op.exprs[0].node().args[0].same(tile);
    if (!in_group) continue;
    const Expr& of_group = op.exprs[0].node().args[1];
    const ExprNode& n = of_group.node();
    add(last_row_first(body, role, tile, num_tiles, 1, of_group));
    if (n.op != ExprOp::kMul || !n.args[1].is_const()) continue;
    add(last_row_first(body, role, tile, num_tiles, n.args[1].const_value(), n.args[0]));
  }
  return out;
}

// Absent where something else goes by the tile's number, or by what another order leaves open.
std::optional<Placing> placing_of(const Block& body, const Role& role, const Expr& tile,
                                  const Expr& num_tiles) {
  auto tells_all = [&](const PlaceLets& lets) {
    std::set<int> not_known = {role.tile_var};
    for (const auto& [let, value] : lets) {
      if (!value.has_value()) not_known.insert(let->var);
    }
    bool others = false;
    for (const Op& op : body) {
      if (lets.count(&op) != 0) continue;
      for_each_expr_in(op, [&](const Expr& e) { others |= uses_any(e, not_known); });
    }
    return !others;
  };
  for (Placing& placing : ways_to_place(body, role, tile, num_tiles)) {
    if (tells_all(placing.lets)) return std::move(placing);
  }
  return {};
}

// The same tiles row by row, where all agents find row and column in the same way of those above,
// and go by nothing else. Where consumers take turns, each tile is another one's then, so all have
// to do the same.
TileOrder row_by_row(const Role& role, const LocalRoles::Local& local, const Program& program) {
  TileOrder out;
  PlaceLets all;
  std::vector<Expr> by;
  for (const LocalRoles::Turn& turn : local.turns) {
    std::vector<Expr> in_turn(program.vars.size());
    in_turn[at(role.tile_var)] = turn.tile;
    for (const Block* body : turn.bodies) {
      if (body == nullptr) continue;
      auto placing = placing_of(*body, role, turn.tile, local.num_tiles);
      if (!placing) return {};
      if (placing->lets.empty()) continue;
      if (by.empty()) by = placing->by;
      bool one_way = std::ranges::equal(by, placing->by,
                                        [](const Expr& a, const Expr& b) { return a.same(b); });
      if (!one_way) return {};
      for (const auto& [let, value] : placing->lets) {
        out.values[let->var] = value.has_value() ? substitute(value, in_turn) : Expr(0);
      }
      all.insert(placing->lets.begin(), placing->lets.end());
    }
  }
  for (std::size_t t = 1; t < local.turns.size(); ++t) {
    const auto &first = local.turns[0].bodies, &bodies = local.turns[t].bodies;
    Likeness likeness(role, local.turns.size(), all);
    bool alike = likeness.alike(*first[0], *bodies[0]) && likeness.alike(*first[1], *bodies[t + 1]);
    if (!alike) return {};
  }
  return out;
}

// All agents do what they do in the same tile; or a producer does so for one consumer after the
// other: of worker w in round r, with tile r * workers + w, for consumer c the tile
// (r * consumers + c) * workers + w, if there is one. None where it is neither.
std::vector<LocalRoles::Turn> turns_of(const Role& role, Expr& num_tiles) {
  std::vector<int> rings = rings_of(role);
  Expr t = Expr::var(role.tile_var);
  num_tiles = role.num_tiles;
  std::vector<LocalRoles::Turn> turns;
  if (std::none_of(rings.begin(), rings.end(), [](int ring) { return ring >= 0; })) {
    turns.push_back({.bodies = {}, .tile = t});
    for (const Agent& agent : role.agents) turns[0].bodies.push_back(&agent.body);
    return turns;
  }
  std::size_t consumers = role.agents.size() - 1;
  const Block& all = role.agents[0].body;
  if (consumers == 0 || all.size() != consumers || role.pipes.size() % consumers != 0) return {};
  std::int64_t workers = role.resource.num_workers;
  auto count = static_cast<std::int64_t>(consumers);
  auto of_turn = [&](const Op& op, const Expr& tile) {
    if (op.code != OpCode::kWhen || !op.bodies[1].empty()) return false;
    const ExprNode& n = op.exprs[0].node();
    if (n.op != ExprOp::kLt || !n.args[0].same(tile)) return false;
    if (turns.empty()) num_tiles = n.args[1];
    return n.args[1].same(num_tiles) && !uses_var(num_tiles, role.tile_var);
  };
  for (std::size_t c = 0; c < consumers; ++c) {
    auto turn = static_cast<std::int64_t>(c);
    Expr tile = t / workers * (workers * count) + turn * workers + t % workers;
    const Block& one = role.agents[c + 1].body;
    if (one.size() != 1 || !of_turn(all[c], tile) || !of_turn(one[0], tile)) return {};
    std::vector<const Block*> bodies(role.agents.size(), nullptr);
    bodies[0] = &all[c].bodies[0];
    bodies[c + 1] = &one[0].bodies[0];
    turns.push_back({.bodies = std::move(bodies), .tile = tile});
  }
  bool whole = role.num_tiles.same(ceil_div(num_tiles, Expr(workers * count)) * workers);
  return whole ? turns : std::vector<LocalRoles::Turn>{};
}

// Divided by what goes by a size.
bool divides_by(const Expr& expr, const std::set<int>& sized) {
  const ExprNode& n = expr.node();
  bool divides = (n.op == ExprOp::kFloorDiv || n.op == ExprOp::kMod) && uses_any(n.args[1], sized);
  return divides || std::any_of(n.args.begin(), n.args.end(),
                                [&](const Expr& arg) { return divides_by(arg, sized); });
}

// A tile that is there at other sizes only has a value for all that it goes by.
bool has_values_anyway(const Role& role, const LocalRoles::Local& local, const Program& program) {
  const auto& in_order = local.order.values;
  std::set<int> sized;
  for (std::size_t v = 0; v < program.vars.size(); ++v) {
    VarKind kind = program.vars[v].kind;
    bool steady = kind == VarKind::kRank || kind == VarKind::kTile || kind == VarKind::kLoop;
    if (!steady && in_order.count(static_cast<int>(v)) == 0) sized.insert(static_cast<int>(v));
  }
  bool divided = false;
  auto look = [&](const Block& body) {
    for (const Op& op : body) {
      if (op.code == OpCode::kLet && in_order.count(op.var) != 0) continue;
      for_each_expr_in(op, [&](const Expr& e) { divided |= divides_by(e, sized); });
    }
  };
  for (const LocalRoles::Turn& turn : local.turns) {
    for (const Block* body : turn.bodies) {
      if (body != nullptr) look(*body);
    }
  }
  if (local.turns.empty()) {
    for (const Agent& agent : role.agents) look(agent.body);
  }
  return !divided;
}

}  // namespace

bool LocalRoles::is_steady_tile(const Block& block) const {
  auto rule = [&](const Op& op, const std::set<int>& known) -> std::optional<bool> {
    auto kind_of = [&] { return program_.tensors[at(op.region->tensor)].kind; };
    if (slots_of_loop(op, loops_) != nullptr) return reads_what_nobody_writes(op, program_);
    switch (op.code) {
      case OpCode::kLoad:
        return reads_what_nobody_writes(op, program_);
      case OpCode::kPipePut:
        return op.operands.empty() && reads_what_nobody_writes(op, program_);
      case OpCode::kStore:
        return kind_of() == TensorKind::kOutput;
      case OpCode::kPipeFill:
        return !op.region;
      case OpCode::kDotAsync:
        return all_go_by_only(op.exprs, known);
      default:
        return std::nullopt;
    }
  };
  return is_steady(block, {}, rule);
}

bool LocalRoles::is_local(const Role& role, const std::vector<Turn>& turns) const {
  bool plain = !turns.empty() && role.barriers.empty();
  for (const Turn& turn : turns) {
    for (std::size_t a = 0; plain && a < turn.bodies.size(); ++a) {
      const Block* body = turn.bodies[a];
      if (body == nullptr) continue;
      plain = is_steady_tile(*body) && keeps_sides(*body, static_cast<int>(a), role);
    }
  }
  for (const Pipe& pipe : role.pipes) plain = plain && pipe.producer != pipe.consumer;
  return plain && std::all_of(turns.begin(), turns.end(),
                              [&](const Turn& turn) { return comes_through(role, turn); });
}

bool LocalRoles::comes_through(const Role& role, const Turn& turn) const {
  ExpandState state(program_, extent_bounds(program_), nullptr, nullptr);
  SyncExpander syncs(state, /*by_units=*/false);
  auto role_idx = static_cast<int>(&role - program_.roles.data());
  syncs.start_worker(role_idx, 0);
  syncs.add_meeting();
  std::set<int> in_loops;
  std::int64_t parties = 0;
  for (const Block* body : turn.bodies) {
    if (body == nullptr) continue;
    std::set<int> slots = slots_of_loops(*body, loops_);
    parties += slots.empty() ? 0 : 1;
    in_loops.insert(slots.begin(), slots.end());
  }
  try {
    for (std::size_t a = 0; a < turn.bodies.size(); ++a) {
      if (turn.bodies[a] == nullptr) continue;
      state.recorder.start_agent({.rank = 0,
                                  .phase = Phase::kRoles,
                                  .role = role_idx,
                                  .worker = 0,
                                  .agent = static_cast<int>(a)});
      syncs.start_agent();
      SlotWalk(state, syncs, loops_, parties).block(*turn.bodies[a]);
      if (syncs.awaits_dots()) return false;
    }
  } catch (const Rejected&) {  // said by those that walk every tile
    return false;
  }
  // That a loop comes through is shown with all slots free that it passes.
  bool apart =
      std::none_of(in_loops.begin(), in_loops.end(), [&](int pipe) { return syncs.moved(pipe); });
  return apart && syncs.even() && come_through(state.graph, 0);
}

const LocalRoles::Local& LocalRoles::of(const Role& role) {
  auto [it, is_new] = known_.try_emplace(&role);
  if (!is_new) return it->second;
  Local& local = it->second;
  local.turns = turns_of(role, local.num_tiles);
  local.is_local = is_local(role, local.turns);
  if (!local.is_local) local.turns.clear();
  if (local.is_local) local.order = row_by_row(role, local, program_);
  local.counts_open = has_values_anyway(role, local, program_);
  return local;
}

}  // namespace stretto
