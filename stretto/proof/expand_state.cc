#include "stretto/proof/expand_state.h"

#include <fmt/format.h>

#include <algorithm>

#include "stretto/base/errors.h"
#include "stretto/ir/expr_arithmetic.h"
#include "stretto/ir/op_info.h"
#include "stretto/ir/walk_budget.h"
#include "stretto/proof/loop_fold.h"
#include "stretto/proof/overlap.h"

namespace stretto {

ExpandState::ExpandState(const Program& p, const std::vector<std::int64_t>& extents,
                         const TableWitness* witness, SizeRegion* sizes)
    : program(p),
      scope(p, initial_vars(p, 0, extents), witness, sizes),
      recorder(graph, budget, sizes),
      region(sizes),
      num_sizes_(sizes != nullptr ? sizes->num_sizes() : 1) {
  graph.program = &p;
  graph.extents = extents;
  cells.resize(p.tensors.size());
  if (region != nullptr && region->masks_open()) turns = std::make_unique<PartTurns>(p);
  for (const Tensor& tensor : p.tensors) {
    auto& shape = graph.shapes.emplace_back();
    if (region != nullptr) {
      note_shape(tensor, shape);
      continue;
    }
    for (const Expr& dim : tensor.shape) shape.push_back(scope.value(dim, "shape"));
    check_storage(tensor, shape);
  }
  if (witness != nullptr) return;
  deciding = deciding_tables(p);
  if (region != nullptr) {
    require_cells_of_turns();
    if (!deciding.counted_loops.empty()) throw DependsOnTable{"how often a loop over slots runs"};
    return;
  }
  cells = table_cells(p, extents);
  for (std::size_t t = 0; t < cells.size(); ++t) {
    if (!cells[t]) continue;
    graph.shapes[t][static_cast<std::size_t>(cells[t]->dim)] = cells[t]->height;
    if (cells[t]->digit_dim >= 0) {
      graph.shapes[t][static_cast<std::size_t>(cells[t]->digit_dim)] = 1;
    }
    graph.shapes[t].push_back(cells[t]->count);
    has_cells = true;
  }
}

void ExpandState::note_cut() {
  double left = region->num_sizes(), part = left / num_sizes_;
  if (at != nullptr && part < graph.deepest_cut.second) graph.deepest_cut = {at, part};
  num_cuts_ = region->num_cuts();
  num_sizes_ = left;
}

void ExpandState::check_storage(const Tensor& tensor,
                                const std::vector<std::int64_t>& shape) const {
  std::vector<std::int64_t> bound =
      bound_shape(program, static_cast<int>(&tensor - program.tensors.data()));
  for (std::size_t d = 0; d < shape.size(); ++d) {
    if (shape[d] <= bound[d]) continue;
    throw Rejected(fmt::format(
        "{}:{}: tensor '{}' has {} elements in dimension {}, more than the {} with all sizes at "
        "their bounds, which storage is kept for",
        tensor.loc.file, tensor.loc.line, tensor.name, shape[d], d, bound[d]));
  }
}

void ExpandState::note_shape(const Tensor& tensor, std::vector<std::int64_t>& shape) {
  auto tensor_idx = static_cast<int>(shape_forms.size());
  auto& forms = shape_forms.emplace_back();
  std::vector<std::int64_t> bound = bound_shape(program, tensor_idx);
  std::vector<SizeMasks::Side> sides;
  for (std::size_t d = 0; d < tensor.shape.size(); ++d) {
    forms.push_back(scope.form(tensor.shape[d]));
    if (region->most(forms[d]) > bound[d]) region->keep_order(forms[d], {.value = bound[d]});
    shape.push_back(forms[d].value);
    sides.push_back({.from = {}, .ends = {forms[d]}});
    for (int rank = 0; rank < program.world_size; ++rank) {
      region->note_end(tensor_idx, rank, static_cast<int>(d), {});
      region->note_end(tensor_idx, rank, static_cast<int>(d), forms[d]);
    }
  }
  check_storage(tensor, shape);
  if (graph.masks == nullptr) return;
  if (turns != nullptr) see_by_parts(tensor_idx, shape, sides);
  std::optional<Mask> whole = graph.masks->mask(sides, {}, *region);
  graph.whole_tensors.push_back(whole ? graph.masks->number(*whole) : -1);
}

// Where there are any rows: without them there is nothing to be seen.
void ExpandState::see_by_parts(int tensor, std::vector<std::int64_t>& shape,
                               std::vector<SizeMasks::Side>& sides) {
  std::optional<PartTurns::Rows> rows = turns->rows_of(tensor);
  auto& forms = shape_forms[static_cast<std::size_t>(tensor)];
  if (!rows || region->most(forms[static_cast<std::size_t>(rows->dim)]) < 1) return;
  auto all = [](std::int64_t size) {
    return SizeMasks::Side{.from = {}, .ends = {{.value = size}}};
  };
  auto d = static_cast<std::size_t>(rows->dim);
  cells[static_cast<std::size_t>(tensor)] = TableCells{.table = rows->table,
                                                       .dim = rows->dim,
                                                       .count = rows->parts,
                                                       .height = rows->step,
                                                       .rows = rows->step};
  shape[d] = rows->step;
  forms[d] = {.value = rows->step};
  sides[d] = all(rows->step);
  shape.push_back(rows->parts);
  forms.push_back({.value = rows->parts});
  sides.push_back(all(rows->parts));
}

// Of inputs nothing is written down.
void ExpandState::require_cells_of_turns() const {
  std::vector<std::optional<TableCells>> dealt_out = table_cells(program, graph.extents);
  for (std::size_t t = 0; t < dealt_out.size(); ++t) {
    if (!dealt_out[t]) continue;
    bool known = turns != nullptr && (turns->rows_of(static_cast<int>(t)).has_value() ||
                                      nobody_writes(program.tensors[t]));
    if (!known) throw DependsOnTable{"which rows lie in which part"};
  }
}

TableFact inhabited_from(const TablePoint& part) {
  return {.kind = FactKind::kInhabited,
          .table = part.table,
          .entry = {part.entry},
          .value = part.offset,
          .condition = ""};
}

void ExpandState::reject(const Op& op, const std::string& what) const {
  int agent = static_cast<int>(graph.agents.size()) - 1;
  throw Rejected(fmt::format("{}: {} by {}: {}", describe_loc(&op), op_info(op.code).name,
                             describe_agent(graph, agent, tile), what));
}

bool ExpandState::stays_in_parts(const Op& loop, const std::set<int>& moving) const {
  if (!has_cells) return true;
  return std::none_of(loop.bodies[0].begin(), loop.bodies[0].end(), [&](const Op& op) {
    if (!op.region) return false;
    const auto& of = cells[static_cast<std::size_t>(op.region->tensor)];
    auto moves = [&](int dim) {
      return dim >= 0 && uses_any(op.region->origin[static_cast<std::size_t>(dim)], moving);
    };
    return of && (moves(of->dim) || moves(of->digit_dim));
  });
}

WherePositive key_of(const std::vector<SizeForm>& forms) {
  WherePositive key;
  for (const SizeForm& f : forms) key.emplace_back(f.value, f.slope);
  return key;
}

}  // namespace stretto
