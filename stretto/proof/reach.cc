#include "stretto/proof/reach.h"

#include <fmt/format.h>

#include <algorithm>

namespace stretto {
namespace {

// Depends on more than the launch's sizes: on tile, rank, loop or table.
bool moves(const Program& program, const Expr& expr) {
  const ExprNode& n = expr.node();
  if (n.op == ExprOp::kTable) return true;
  if (n.op == ExprOp::kVar) {
    VarKind kind = program.vars[static_cast<std::size_t>(n.value)].kind;
    return kind != VarKind::kExtent && kind != VarKind::kScalar;
  }
  return std::any_of(n.args.begin(), n.args.end(),
                     [&](const Expr& arg) { return moves(program, arg); });
}

std::string shape_text(const InstanceGraph& graph, int tensor) {
  auto t = static_cast<std::size_t>(tensor);
  std::string text;
  for (std::size_t d = 0; d < graph.program->tensors[t].shape.size(); ++d) {
    text += fmt::format("{}{}", d == 0 ? "" : ", ", graph.shapes[t][d]);
  }
  return text;
}

}  // namespace

Lie lie_of(const Program& program, const Region& region, const LooseBox& box,
           const std::vector<std::int64_t>& shape) {
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) return Lie::kNowhere;
  bool meets = true, far = false;
  // A part of rows that a table deals out has one place more than the region (table_cells.h), which
  // is always there.
  for (std::size_t d = 0; d < region.origin.size(); ++d) {
    std::int64_t end = box.origin[d] + box.size[d];
    if (box.size[d] == 0) return Lie::kNowhere;  // such rows where a mask leaves none
    std::int64_t size = static_cast<int>(d) == region.row_dim   ? region.rows
                        : static_cast<int>(d) == region.col_dim ? region.cols
                                                                : 1;
    // Of the lowest box, and of the highest.
    std::int64_t gap = std::max(-box.origin[d] - size, end - size - shape[d]);
    bool outside = box.origin[d] >= shape[d] || end <= 0;
    meets &= !outside;
    far |= gap >= size || (outside && !moves(program, region.origin[d]));
  }
  if (meets) return Lie::kMeets;
  return far ? Lie::kFar : Lie::kBeside;
}

void UnmetTensors::add(const InstanceGraph& graph, const std::string& where) {
  for (const auto& [access, reach] : graph.reaches) {
    const SourceLoc& loc = access.first->loc;
    Line& line = lines_[{loc.file, loc.line, reach.tensor, access.second}];
    line.meets |= reach.meets;
    if (line.meets || !reach.far || !line.text.empty()) continue;
    line.text = fmt::format(
        "{}: {} by {}\n    lies outside of '{}', which is [{}], and so does all of it that this "
        "line accesses, on every rank",
        describe_loc(access.first),
        describe_box(graph, reach.tensor, reach.box, reach.kind, reach.rank),
        describe_agent(graph, reach.agent, reach.tile),
        graph.program->tensors[static_cast<std::size_t>(reach.tensor)].name,
        shape_text(graph, reach.tensor));
    line.where = where;
  }
}

std::vector<std::pair<std::string, std::string>> UnmetTensors::findings() const {
  std::vector<std::pair<std::string, std::string>> out;
  for (const auto& [key, line] : lines_) {
    if (!line.meets && !line.text.empty()) out.emplace_back(line.text, line.where);
  }
  return out;
}

}  // namespace stretto
