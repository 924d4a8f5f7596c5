#include "stretto/proof/hidden_sizes.h"

#include <algorithm>
#include <initializer_list>
#include <limits>
#include <optional>
#include <utility>

#include "stretto/base/at.h"
#include "stretto/base/errors.h"
#include "stretto/ir/block_ops.h"
#include "stretto/ir/expr_arithmetic.h"
#include "stretto/ir/tables.h"
#include "stretto/proof/expand.h"
#include "stretto/proof/instance_graph.h"
#include "stretto/proof/steady_slots.h"
#include "stretto/proof/table_cells.h"

namespace stretto {
namespace {

bool uses(const Expr& expr, int var) { return expr.has_value() && uses_var(expr, var); }

bool uses(const std::optional<Region>& region, int var) {
  if (!region) return false;
  return uses(region->rank, var) || uses(region->row_end, var) || uses(region->col_end, var) ||
         std::ranges::any_of(region->origin, [&](const Expr& e) { return uses(e, var); });
}

bool uses(const Block& block, int var) {
  return std::ranges::any_of(block, [&](const Op& op) {
    return std::ranges::any_of(op.exprs, [&](const Expr& e) { return uses(e, var); }) ||
           uses(op.region, var) || uses(op.region2, var) ||
           std::ranges::any_of(op.bodies, [&](const Block& body) { return uses(body, var); });
  });
}

// What is made of one size and numbers, for each value of the size.
class OfSize {
 public:
  OfSize(const Program& program, int var) : var_(var), bound_(program.vars[at(var)].bound) {
    vars_.resize(program.vars.size());
  }

  // No smaller where the size is larger.
  bool grows(const Expr& expr) {
    std::int64_t last = std::numeric_limits<std::int64_t>::min();
    return at_each_size({&expr}, [&](std::int64_t size) {
      std::int64_t next = value(expr, size);
      return std::exchange(last, next) <= next;
    });
  }
  // a times `by` is no less than b, at each size.
  bool reaches(const Expr& a, std::int64_t by, const Expr& b) {
    return at_each_size({&a, &b}, [&](std::int64_t size) {
      return apply(ExprOp::kMul, value(a, size), by) >= value(b, size);
    });
  }

 private:
  static constexpr std::int64_t kMostSizes = std::int64_t{1} << 20;

  template <typename Holds>
  bool at_each_size(std::initializer_list<const Expr*> of, const Holds& holds) {
    if (bound_ > kMostSizes) return false;
    for (const Expr* e : of) {
      if (!all_go_by_only({*e}, {var_})) return false;
    }
    try {
      for (std::int64_t size = 0; size <= bound_; ++size) {
        if (!holds(size)) return false;
      }
    } catch (const Error&) {  // it has no value at some size
      return false;
    }
    return true;
  }
  std::int64_t value(const Expr& expr, std::int64_t size) {
    vars_[at(var_)] = size;
    return eval(expr, vars_);
  }

  int var_;
  std::int64_t bound_;
  std::vector<std::int64_t> vars_;
};

// With what lets say in place of their variables.
Expr resolved(const Expr& expr, const std::vector<Expr>& lets) {
  Expr out = expr;
  for (int depth = 0; depth < 16; ++depth) {
    Expr next = substitute(out, lets);
    if (next.same(out)) return out;
    out = next;
  }
  return out;
}

bool reads_table(const Expr& expr, int table) {
  const ExprNode& n = expr.node();
  return (n.op == ExprOp::kTable && n.value == table) ||
         std::ranges::any_of(n.args, [&](const Expr& arg) { return reads_table(arg, table); });
}

// Lets of an agent: each is the only one of its variable.
void collect(const Block& block, std::vector<Expr>& lets) {
  for (const Op& op : block) {
    if (op.code == OpCode::kLet) lets[at(op.var)] = op.exprs[0];
    for (const Block& body : op.bodies) collect(body, lets);
  }
}

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

// A loop whose iterations have some rows of a part each, if the part has as many: those beyond the
// rows of all parts do nothing, so it does not matter how many of them there are.
bool ends_behind_parts(const Op& loop, const std::vector<Expr>& lets, const Program& program,
                       OfSize& size) {
  if (loop.code != OpCode::kLoop || !loop.exprs[0].is_const(0)) return false;
  const Op* condition = nullptr;
  for (const Op& op : loop.bodies[0]) {
    bool reads = op.code != OpCode::kLet || uses_table(op.exprs[0]);
    if (!reads) continue;
    if (op.code != OpCode::kWhen || condition != nullptr || !op.bodies[1].empty()) return false;
    condition = &op;
  }
  if (condition == nullptr || condition->exprs[0].node().op != ExprOp::kLt) return false;
  const ExprNode& less = condition->exprs[0].node();
  Expr row = resolved(less.args[0], lets), end = resolved(less.args[1], lets);
  const ExprNode& entry = end.node();
  if (entry.op != ExprOp::kTable || entry.args.size() != 1) return false;
  const Tensor& table = program.tensors[at(entry.value)];
  bool parts = table.contract.kind == ContractKind::kPartition &&
               table.kind == TensorKind::kInput && table.contract.lo.is_const(0);
  if (!parts) return false;
  std::vector<Expr> terms;
  terms_of(row, terms);
  std::int64_t step = 0;
  int begins = 0;
  for (const Expr& term : terms) {
    const ExprNode& n = term.node();
    if (n.op == ExprOp::kTable) {
      bool begin = n.value == entry.value && (n.args[0] + Expr(1)).same(entry.args[0]);
      if (!begin) return false;
      ++begins;
      continue;
    }
    std::optional<std::int64_t> moves = step_of(term, loop.var, program);
    if (!moves) return false;
    step += *moves;
  }
  return begins == 1 && size.reaches(loop.exprs[1], step, table.contract.hi - Expr(1));
}

// What an agent does goes by the size.
bool uses_in(const Block& block, int var, const std::vector<Expr>& lets, const Program& program,
             OfSize& size) {
  return std::ranges::any_of(block, [&](const Op& op) {
    bool ends = op.code == OpCode::kLoop && uses(op.exprs[1], var) &&
                ends_behind_parts(op, lets, program, size);
    bool by_exprs = std::ranges::any_of(op.exprs, [&](const Expr& e) { return uses(e, var); });
    return (by_exprs && !ends) || uses(op.region, var) || uses(op.region2, var) ||
           std::ranges::any_of(op.bodies, [&](const Block& body) {
             return uses_in(body, var, lets, program, size);
           });
  });
}

// Whether `expr` reads entry number `tile` of the table, and nothing else of it.
bool reads_only(const Expr& expr, int table, int tile) {
  const ExprNode& n = expr.node();
  if (n.op == ExprOp::kTable && n.value == table) {
    return n.args.size() == 1 && n.args[0].same(Expr::var(tile));
  }
  return std::ranges::all_of(n.args, [&](const Expr& arg) { return reads_only(arg, table, tile); });
}

// The table of which entry i says whether tile i of a role does anything: nothing where it is
// negative. -1: none.
int table_of_tiles(const Program& program, const Role& role) {
  bool plain = role.resource.kind == ResourceKind::kSm && role.resource.cluster_size == 1 &&
               role.resource.beside < 0 && role.agents.size() == 1 && role.pipes.empty() &&
               role.barriers.empty();
  if (!plain || role.num_tiles.node().op != ExprOp::kVar) return -1;
  std::vector<Expr> lets(program.vars.size());
  collect(role.agents[0].body, lets);
  int table = -1;
  for (const Op& op : role.agents[0].body) {
    if (op.code == OpCode::kLet) continue;
    const Expr* c = op.code == OpCode::kWhen && op.bodies[1].empty() ? &op.exprs[0] : nullptr;
    bool asks = c != nullptr && c->node().op == ExprOp::kLe && c->node().args[0].is_const(0);
    const Expr entry = asks ? resolved(c->node().args[1], lets) : Expr(0);
    if (entry.node().op != ExprOp::kTable) return -1;
    const int read = static_cast<int>(entry.node().value);
    if (table >= 0 && table != read) return -1;
    table = read;
  }
  return table;
}

// Whether the table has as many entries as the role has tiles, and may say of each that its tile
// does nothing, and is read nowhere else. Then what a size does is done by the bound, too, with -1
// in the entries beyond the size's: a tile's worker does not go by how many tiles there are.
bool names_tiles(const Program& program, const Role& role, int var) {
  const int table = table_of_tiles(program, role);
  if (table < 0 || !role.num_tiles.same(Expr::var(var))) return false;
  const Tensor& tensor = program.tensors[at(table)];
  const Contract& contract = tensor.contract;
  bool leaves_out = contract.kind == ContractKind::kPermutation && contract.lo.is_const() &&
                    contract.lo.const_value() < 0 && !uses(contract.hi, var);
  if (!leaves_out || tensor.kind != TensorKind::kInput || tensor.shape.size() != 1) return false;
  auto only_here = [&](const Role& other) {
    return std::ranges::all_of(other.agents, [&](const Agent& agent) {
      return !any_op(agent.body, [&](const Op& op) {
        auto elsewhere = [&](const Expr& e) {
          if (!e.has_value()) return false;
          return &other == &role ? !reads_only(e, table, role.tile_var) : reads_table(e, table);
        };
        auto in_region = [&](const std::optional<Region>& r) {
          return r && (elsewhere(r->rank) || elsewhere(r->row_end) || elsewhere(r->col_end) ||
                       r->tensor == table || std::ranges::any_of(r->origin, elsewhere));
        };
        return std::ranges::any_of(op.exprs, elsewhere) || in_region(op.region) ||
               in_region(op.region2);
      });
    });
  };
  bool hooks = any_op(program.on_start.body, [](const Op&) { return true; }) ||
               any_op(program.on_end.body, [](const Op&) { return true; });
  return tensor.shape[0].same(Expr::var(var)) && !hooks &&
         std::ranges::all_of(program.roles, only_here);
}

// The table by which the size's tiles do something; -1: none.
int table_of_size(const Program& program, int var) {
  for (const Role& role : program.roles) {
    if (names_tiles(program, role, var)) return table_of_tiles(program, role);
  }
  return -1;
}

// What its agents do goes by the size.
bool uses(const Program& program, int var, OfSize& size) {
  return uses(program.on_start.body, var) || uses(program.on_end.body, var) ||
         std::ranges::any_of(program.roles, [&](const Role& role) {
           bool tiles = uses(role.num_tiles, var) && !names_tiles(program, role, var);
           return tiles || std::ranges::any_of(role.agents, [&](const Agent& a) {
                    std::vector<Expr> lets(program.vars.size());
                    collect(a.body, lets);
                    return uses_in(a.body, var, lets, program, size);
                  });
         });
}

// A larger size allows all tables that this one allows, up to where a partition ends.
bool grows(const Contract& contract, int var, OfSize& size) {
  bool ranges = contract.kind == ContractKind::kRange ||
                contract.kind == ContractKind::kAscending ||
                contract.kind == ContractKind::kPartition;
  return ranges && !uses(contract.lo, var) && size.grows(contract.hi);
}

// Of a tensor's dimension that goes by the size: the rows of all parts, whatever it is.
bool is_dealt_out(const Program& program, const Tensor& tensor,
                  const std::optional<TableCells>& cells, int dim) {
  if (!cells || !cells->is_partition() || cells->dim != dim) return false;
  const Contract& contract = program.tensors[at(cells->table)].contract;
  return contract.lo.is_const(0) && (tensor.shape[at(dim)] + Expr(1)).same(contract.hi);
}

// Whether some index or condition goes by an entry of the table: it has to be there.
bool is_read(const Program& program, int table) {
  auto reads = [&](const Expr& e) { return e.has_value() && reads_table(e, table); };
  auto in_block = [&](const Block& block) {
    return any_op(block, [&](const Op& op) {
      auto in_region = [&](const std::optional<Region>& r) {
        return r && (reads(r->rank) || reads(r->row_end) || reads(r->col_end) ||
                     std::ranges::any_of(r->origin, reads));
      };
      return std::ranges::any_of(op.exprs, reads) || in_region(op.region) || in_region(op.region2);
    });
  };
  if (in_block(program.on_start.body) || in_block(program.on_end.body)) return true;
  return std::ranges::any_of(program.roles, [&](const Role& role) {
    return std::ranges::any_of(role.agents, [&](const Agent& a) { return in_block(a.body); });
  });
}

bool is_hidden(const Program& program, const std::vector<std::optional<TableCells>>& cells,
               int var) {
  OfSize size(program, var);
  if (uses(program, var, size)) return false;
  const int tiles = table_of_size(program, var);
  for (std::size_t t = 0; t < program.tensors.size(); ++t) {
    const Tensor& tensor = program.tensors[t];
    bool contract =
        is_table(tensor) && (uses(tensor.contract.lo, var) || uses(tensor.contract.hi, var));
    if (contract && (tensor.kind != TensorKind::kInput || !grows(tensor.contract, var, size))) {
      return false;
    }
    bool unread =
        nobody_writes(tensor) && !(is_table(tensor) && is_read(program, static_cast<int>(t)));
    for (std::size_t d = 0; d < tensor.shape.size(); ++d) {
      if (!uses(tensor.shape[d], var)) continue;
      bool of_tiles = static_cast<int>(t) == tiles;
      bool fits =
          size.grows(tensor.shape[d]) &&
          (unread || of_tiles || is_dealt_out(program, tensor, cells[t], static_cast<int>(d)));
      if (!fits) return false;
    }
  }
  return true;
}

}  // namespace

std::vector<bool> hidden_sizes(const Program& program) {
  std::vector<std::optional<TableCells>> cells;
  try {
    cells = table_cells(program, extent_bounds(program));
  } catch (const DependsOnTable&) {
    cells.resize(program.tensors.size());
  }
  std::vector<bool> out;
  for (std::size_t v = 0; v < program.vars.size(); ++v) {
    VarKind kind = program.vars[v].kind;
    if (kind != VarKind::kExtent && kind != VarKind::kScalar) continue;
    out.push_back(kind == VarKind::kExtent && is_hidden(program, cells, static_cast<int>(v)));
  }
  return out;
}

}  // namespace stretto
