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
#include "stretto/proof/one_size.h"
#include "stretto/proof/part_turns.h"
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

bool reads_table(const Expr& expr, int table) {
  const ExprNode& n = expr.node();
  return (n.op == ExprOp::kTable && n.value == table) ||
         std::ranges::any_of(n.args, [&](const Expr& arg) { return reads_table(arg, table); });
}

// A loop whose iterations have some rows of a part each, if the part has as many: those beyond the
// rows of all parts do nothing, so it does not matter how many of them there are.
bool ends_behind_parts(const Op& loop, const std::vector<Expr>& lets, const Program& program,
                       OfSize& size) {
  std::optional<PartRows> rows = part_rows(loop, lets, program);
  if (!rows) return false;
  const Contract& contract = program.tensors[at(rows->table)].contract;
  return size.reaches(loop.exprs[1], rows->step, contract.hi - Expr(1));
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
  collect_lets(role.agents[0].body, lets);
  int table = -1;
  for (const Op& op : role.agents[0].body) {
    if (op.code == OpCode::kLet) continue;
    const Expr* c = op.code == OpCode::kWhen && op.bodies[1].empty() ? &op.exprs[0] : nullptr;
    bool asks = c != nullptr && c->node().op == ExprOp::kLe && c->node().args[0].is_const(0);
    const Expr entry = asks ? with_lets(c->node().args[1], lets) : Expr(0);
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
                    collect_lets(a.body, lets);
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
