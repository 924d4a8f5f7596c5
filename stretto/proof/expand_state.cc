#include "stretto/proof/expand_state.h"

#include <fmt/format.h>

#include <algorithm>

#include "stretto/base/errors.h"
#include "stretto/ir/op_info.h"
#include "stretto/ir/walk_budget.h"
#include "stretto/proof/loop_fold.h"
#include "stretto/proof/overlap.h"

namespace stretto {

ExpandState::ExpandState(const Program& p, const std::vector<std::int64_t>& extents,
                         const TableWitness* witness)
    : program(p), scope(p, initial_vars(p, 0, extents), witness), recorder(graph, budget) {
  graph.program = &p;
  graph.extents = extents;
  for (const Tensor& tensor : p.tensors) {
    if (tensor.shape.size() > kMaxDims) {
      throw BeyondLimit(fmt::format("{}:{}", tensor.loc.file, tensor.loc.line),
                        fmt::format("tensor '{}' has {} dimensions, the proof knows {}",
                                    tensor.name, tensor.shape.size(), kMaxDims));
    }
    auto& shape = graph.shapes.emplace_back();
    for (const Expr& dim : tensor.shape) shape.push_back(scope.value(dim, "shape"));
  }
  cells.resize(p.tensors.size());
  if (witness != nullptr) return;
  deciding = deciding_tables(p);
  cells = table_cells(p, extents);
  for (std::size_t t = 0; t < cells.size(); ++t) {
    if (!cells[t]) continue;
    graph.shapes[t][static_cast<std::size_t>(cells[t]->dim)] = cells[t]->height;
    graph.shapes[t].push_back(cells[t]->count);
    has_cells = true;
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
    return of && uses_any(op.region->origin[static_cast<std::size_t>(of->dim)], moving);
  });
}

}  // namespace stretto
