#include "stretto/proof/hidden_sizes.h"

#include <algorithm>
#include <optional>

#include "stretto/ir/tables.h"
#include "stretto/proof/expand.h"
#include "stretto/proof/instance_graph.h"
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

// What its agents do goes by the size.
bool uses(const Program& program, int var) {
  return uses(program.on_start.body, var) || uses(program.on_end.body, var) ||
         std::ranges::any_of(program.roles, [&](const Role& role) {
           return uses(role.num_tiles, var) ||
                  std::ranges::any_of(role.agents,
                                      [&](const Agent& a) { return uses(a.body, var); });
         });
}

bool is_variable(const Expr& expr, int var) {
  return expr.node().op == ExprOp::kVar && expr.node().value == var;
}

// The size, plus a number.
bool is_sum(const Expr& expr, int var) {
  const ExprNode& n = expr.node();
  return is_variable(expr, var) ||
         (n.op == ExprOp::kAdd && is_variable(n.args[0], var) && n.args[1].is_const());
}

// A larger size allows all tables that this one allows, up to where a partition ends.
bool grows(const Contract& contract, int var) {
  bool ranges = contract.kind == ContractKind::kRange ||
                contract.kind == ContractKind::kAscending ||
                contract.kind == ContractKind::kPartition;
  return ranges && !uses(contract.lo, var) && is_sum(contract.hi, var);
}

// Of a tensor's dimension that is the size: the rows of all parts, whatever it is.
bool is_dealt_out(const Program& program, const std::optional<TableCells>& cells, int dim,
                  int var) {
  if (!cells || !cells->is_partition() || cells->dim != dim) return false;
  const Contract& contract = program.tensors[static_cast<std::size_t>(cells->table)].contract;
  const ExprNode& end = contract.hi.node();
  return contract.lo.is_const(0) && end.op == ExprOp::kAdd && is_variable(end.args[0], var) &&
         end.args[1].is_const(1);
}

bool is_hidden(const Program& program, const std::vector<std::optional<TableCells>>& cells,
               int var) {
  if (uses(program, var)) return false;
  for (std::size_t t = 0; t < program.tensors.size(); ++t) {
    const Tensor& tensor = program.tensors[t];
    bool contract =
        is_table(tensor) && (uses(tensor.contract.lo, var) || uses(tensor.contract.hi, var));
    if (contract && (tensor.kind != TensorKind::kInput || !grows(tensor.contract, var))) {
      return false;
    }
    for (std::size_t d = 0; d < tensor.shape.size(); ++d) {
      if (!uses(tensor.shape[d], var)) continue;
      bool fits =
          is_variable(tensor.shape[d], var) && !is_table(tensor) &&
          (nobody_writes(tensor) || is_dealt_out(program, cells[t], static_cast<int>(d), var));
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
