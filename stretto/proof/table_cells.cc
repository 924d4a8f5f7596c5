#include "stretto/proof/table_cells.h"

#include <map>
#include <set>

#include "stretto/proof/expand.h"

namespace stretto {
namespace {

std::size_t at(int i) { return static_cast<std::size_t>(i); }

// How a region of a tensor is addressed through a table.
struct Use {
  int table, dim;
  std::int64_t block;
  friend auto operator<=>(const Use&, const Use&) = default;
};

class Search {
 public:
  explicit Search(const Program& program) : uses(program.tensors.size()), program_(program) {
    for (const Agent* edge : {&program.on_start, &program.on_end}) block(edge->body);
    for (const Role& role : program.roles) {
      for (const Agent& agent : role.agents) block(agent.body);
    }
  }

  std::vector<std::set<Use>> uses;  // per tensor

 private:
  void block(const Block& ops) {
    for (const Op& op : ops) {
      if (op.code == OpCode::kLet) let(op.var, op.exprs[0].node());
      for (const auto* r : {&op.region, &op.region2}) {
        if (*r) region(**r);
      }
      for (const Block& body : op.bodies) block(body);
    }
  }

  void let(int var, const ExprNode& value) {
    if (value.op == ExprOp::kTable) table_of_let_[var] = static_cast<int>(value.value);
    if (value.op != ExprOp::kVar) return;  // a second name of what was read
    auto read = table_of_let_.find(static_cast<int>(value.value));
    if (read != table_of_let_.end()) table_of_let_[var] = read->second;
  }

  // -1 where `expr` is no variable read from a table of this contract.
  int table_in(const Expr& expr, ContractKind kind) const {
    if (!expr.has_value() || expr.node().op != ExprOp::kVar) return -1;
    auto it = table_of_let_.find(static_cast<int>(expr.node().value));
    if (it == table_of_let_.end()) return -1;
    const Tensor& table = program_.tensors[at(it->second)];
    bool fits = table.contract.kind == kind && table.kind == TensorKind::kInput &&
                table.shape.size() == 1 && !uses_var(table.contract.lo, 0) &&
                !uses_var(table.contract.hi, 0);
    return fits ? it->second : -1;
  }

  void region(const Region& r) {
    auto& found = uses[at(r.tensor)];
    if (int t = table_in(r.row_end, ContractKind::kPartition); t >= 0 && r.row_dim >= 0) {
      found.insert({t, r.row_dim, 0});
    }
    for (std::size_t d = 0; d < r.origin.size(); ++d) {
      const ExprNode& n = r.origin[d].node();
      bool scaled = n.op == ExprOp::kMul && n.args[1].is_const();
      int t = table_in(scaled ? n.args[0] : r.origin[d], ContractKind::kPermutation);
      std::int64_t rows = scaled ? n.args[1].const_value() : 1;
      if (t >= 0 && rows > 0) found.insert({t, static_cast<int>(d), rows});
    }
  }

  const Program& program_;
  std::map<int, int> table_of_let_;
};

std::optional<TableCells> cells_of(const Program& program, std::size_t tensor, const Use& use,
                                   const std::vector<std::int64_t>& extents) {
  std::vector<std::int64_t> vars = initial_vars(program, 0, extents);
  const Tensor& table = program.tensors[at(use.table)];
  std::int64_t lo = eval(table.contract.lo, vars), hi = eval(table.contract.hi, vars);
  std::int64_t entries = eval(table.shape[0], vars);
  TableCells cells{.table = use.table, .dim = use.dim, .block = use.block};
  cells.rows = eval(program.tensors[tensor].shape[at(use.dim)], vars);
  cells.count = cells.is_partition() ? entries - 1 : entries;
  cells.height = cells.is_partition() ? cells.rows : use.block;
  bool reaches_all = cells.is_partition() ? hi - 1 == cells.rows
                                          : hi == entries && entries * use.block >= cells.rows;
  return lo == 0 && reaches_all && cells.count > 0 ? std::optional(cells) : std::nullopt;
}

}  // namespace

std::vector<std::optional<TableCells>> table_cells(const Program& program,
                                                   const std::vector<std::int64_t>& extents) {
  Search search(program);
  std::vector<std::optional<TableCells>> out(program.tensors.size());
  for (std::size_t i = 0; i < out.size(); ++i) {
    const Tensor& tensor = program.tensors[i];
    if (search.uses[i].size() != 1 || tensor.packet || tensor.shape.size() >= kMaxDims) continue;
    const Use& use = *search.uses[i].begin();
    auto at_bounds = cells_of(program, i, use, extent_bounds(program));
    if (!at_bounds) continue;
    out[i] = cells_of(program, i, use, extents);
    // Launches of different sizes are compared with each other, in the same coordinates.
    if (!out[i] || out[i]->count != at_bounds->count) {
      throw DependsOnTable{"the number of parts of a tensor"};
    }
  }
  return out;
}

}  // namespace stretto
