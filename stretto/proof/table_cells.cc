#include "stretto/proof/table_cells.h"

#include <map>
#include <set>

#include "stretto/base/at.h"
#include "stretto/proof/expand.h"

namespace stretto {
namespace {

// How a region of a tensor is addressed through a table.
struct Use {
  int table, dim;
  std::int64_t block;
  int digit_dim = -1;
  std::int64_t by = 1;
  friend auto operator<=>(const Use&, const Use&) = default;
};

// scale * (entry / by), plus something.
struct EntryPlace {
  int table = -1;
  std::int64_t scale = 1, by = 1;
};
constexpr EntryPlace kNoEntry;

class Search {
 public:
  explicit Search(const Program& program) : uses(program.tensors.size()), program_(program) {
    for (const Agent* edge : {&program.on_start, &program.on_end}) block(edge->body);
    for (const Role& role : program.roles) {
      for (const Agent& agent : role.agents) block(agent.body);
    }
    for (auto& [tensor, inner] : within_) {
      if (uses[tensor].empty()) uses[tensor] = std::move(inner);
    }
  }

  std::vector<std::set<Use>> uses;  // per tensor

 private:
  void block(const Block& ops) {
    for (const Op& op : ops) {
      if (op.code == OpCode::kLet) let(op.var, op.exprs[0]);
      for (const auto* r : {&op.region, &op.region2}) {
        if (*r) region(**r);
      }
      for (const Block& body : op.bodies) block(body);
    }
  }

  void let(int var, const Expr& value) {
    const ExprNode& n = value.node();
    definitions_[var] = value;
    if (n.op == ExprOp::kTable) table_of_let_[var] = static_cast<int>(n.value);
    if (n.op != ExprOp::kVar) return;  // a second name of what was read
    auto read = table_of_let_.find(static_cast<int>(n.value));
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

  const Expr* definition(const Expr& expr) const {
    if (expr.node().op != ExprOp::kVar) return nullptr;
    auto it = definitions_.find(static_cast<int>(expr.node().value));
    return it == definitions_.end() ? nullptr : &it->second;
  }

  // Of a permutation.
  EntryPlace place_in(const Expr& expr) const {
    if (int t = table_in(expr, ContractKind::kPermutation); t >= 0) return {.table = t};
    if (const Expr* value = definition(expr)) return place_in(*value);
    const ExprNode& n = expr.node();
    if (n.op == ExprOp::kAdd || n.op == ExprOp::kSub) {
      EntryPlace left = place_in(n.args[0]), right = place_in(n.args[1]);
      if (left.table >= 0 && right.table >= 0) return kNoEntry;
      return n.op == ExprOp::kAdd && right.table >= 0 ? right : left;
    }
    if ((n.op != ExprOp::kMul && n.op != ExprOp::kFloorDiv) || !n.args[1].is_const()) {
      return kNoEntry;
    }
    EntryPlace p = place_in(n.args[0]);
    std::int64_t number = n.args[1].const_value();
    if (p.table < 0 || number <= 0) return kNoEntry;
    if (n.op == ExprOp::kMul) {
      p.scale *= number;
      return p;
    }
    if (p.scale != 1 || p.by != 1) return kNoEntry;
    p.by = number;
    return p;
  }

  // Whether it is an entry of the place's table modulo what that divides by.
  bool is_digit(const Expr& expr, const EntryPlace& place) const {
    if (const Expr* value = definition(expr)) return is_digit(*value, place);
    const ExprNode& n = expr.node();
    return n.op == ExprOp::kMod && n.args[1].is_const(place.by) &&
           table_in(n.args[0], ContractKind::kPermutation) == place.table;
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
      EntryPlace p = place_in(r.origin[d]);
      if (p.table < 0) continue;
      Use use{.table = p.table, .dim = static_cast<int>(d), .block = p.scale, .by = p.by};
      for (std::size_t e = 0; e < r.origin.size() && p.by > 1; ++e) {
        if (e != d && is_digit(r.origin[e], p)) use.digit_dim = static_cast<int>(e);
      }
      if (use.digit_dim >= 0) found.insert(use);
      if (p.by == 1) within_[at(r.tensor)].insert(use);
    }
  }

  const Program& program_;
  std::map<int, int> table_of_let_;
  std::map<int, Expr> definitions_;              // of lets
  std::map<std::size_t, std::set<Use>> within_;  // by tensor: blocks, some of it within one
};

struct Bounds {
  std::int64_t lo, hi, entries;
};

Bounds bounds_of(const Program& program, const Use& use, const std::vector<std::int64_t>& vars) {
  const Tensor& table = program.tensors[at(use.table)];
  return {eval(table.contract.lo, vars), eval(table.contract.hi, vars), eval(table.shape[0], vars)};
}

// Every block of a permutation is an entry's.
bool is_onto(const TableCells& cells, const Bounds& b) {
  return cells.digit_dim < 0 && b.lo == 0 && b.hi == b.entries &&
         b.entries * cells.block >= cells.rows;
}

// Whether blocks are left out is decided at the bounds.
std::optional<TableCells> cells_of(const Program& program, std::size_t tensor, const Use& use,
                                   const std::vector<std::int64_t>& extents) {
  auto at_sizes = [&](const std::vector<std::int64_t>& sizes) {
    std::vector<std::int64_t> vars = initial_vars(program, 0, sizes);
    auto rows_of = [&](int dim) { return eval(program.tensors[tensor].shape[at(dim)], vars); };
    TableCells cells{.table = use.table,
                     .dim = use.dim,
                     .rows = rows_of(use.dim),
                     .block = use.block,
                     .digit_dim = use.digit_dim,
                     .by = use.by};
    bool whole = use.digit_dim < 0 || rows_of(use.digit_dim) == use.by;
    return std::pair(whole ? std::optional(cells) : std::nullopt, bounds_of(program, use, vars));
  };
  auto [cells, b] = at_sizes(extents);
  auto [at_bounds, most] = at_sizes(extent_bounds(program));
  if (!cells || !at_bounds) return std::nullopt;
  if (cells->is_partition()) {
    cells->count = b.entries - 1;
    cells->height = cells->rows;
    bool reaches_all = b.lo == 0 && b.hi - 1 == cells->rows && cells->count > 0;
    return reaches_all ? cells : std::nullopt;
  }
  cells->height = use.block;
  cells->leaves_out = !is_onto(*at_bounds, most);
  // As many parts at all sizes where some are left out: those of no entry have no rows.
  cells->count = cells->leaves_out ? most.entries + 1 : b.entries;
  bool known = cells->leaves_out || (is_onto(*cells, b) && cells->count > 0);
  return known ? cells : std::nullopt;
}

}  // namespace

std::vector<std::optional<TableCells>> table_cells(const Program& program,
                                                   const std::vector<std::int64_t>& extents) {
  Search search(program);
  std::vector<std::optional<TableCells>> out(program.tensors.size());
  for (std::size_t i = 0; i < out.size(); ++i) {
    const Tensor& tensor = program.tensors[i];
    if (search.uses[i].size() != 1 || tensor.packet || tensor.shape.size() >= kMaxTensorDims)
      continue;
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
