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
  std::int64_t others = program.world_size - 1;
  bool meets = true, far = false, astray = false;
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
    astray |= outside && gap >= size && ceil_div(shape[d], size) > others * others;
  }
  if (meets) return Lie::kMeets;
  if (astray) return Lie::kAstray;
  return far ? Lie::kFar : Lie::kBeside;
}

void UnmetTensors::add(const InstanceGraph& graph, const std::string& where) {
  for (const auto& [access, reach] : graph.reaches) {
    auto [op, which, rank] = access;
    OnRank& here = lines_[{op->loc.file, op->loc.line, reach.tensor, which}][rank];
    here.meets |= reach.meets;
    here.astray |= reach.astray;
    if (here.meets || !reach.far || !here.text.empty()) continue;
    here.text = fmt::format(
        "{}: {} by {}\n    lies outside of '{}', which is [{}], and so does all else that",
        describe_loc(op), describe_box(graph, reach.tensor, reach.box, reach.kind, reach.rank),
        describe_agent(graph, reach.agent, reach.tile),
        graph.program->tensors[static_cast<std::size_t>(reach.tensor)].name,
        shape_text(graph, reach.tensor));
    here.where = where;
  }
}

void UnmetTensors::add(const UnmetTensors& later) {
  for (const auto& [key, line] : later.lines_) {
    for (const auto& [rank, there] : line) {
      OnRank& here = lines_[key][rank];
      here.meets |= there.meets;
      here.astray |= there.astray;
      if (!here.text.empty()) continue;
      here.text = there.text;
      here.where = there.where;
    }
  }
}

bool UnmetTensors::any_meets(const Line& line) {
  return std::any_of(line.begin(), line.end(), [](const auto& r) { return r.second.meets; });
}

bool UnmetTensors::all_meet() const {
  return std::all_of(lines_.begin(), lines_.end(), [](const auto& line) {
    bool somewhere = std::get<2>(line.first) >= 0;  // its tensor has elements
    return !somewhere || any_meets(line.second);
  });
}

std::vector<std::pair<std::string, std::string>> UnmetTensors::findings() const {
  std::vector<std::pair<std::string, std::string>> out;
  for (const auto& [key, line] : lines_) {
    auto far = std::find_if(line.begin(), line.end(),
                            [](const auto& rank) { return !rank.second.text.empty(); });
    if (any_meets(line) || far == line.end()) continue;
    out.emplace_back(far->second.text + " any rank accesses by this line", far->second.where);
  }
  return out;
}

std::vector<std::string> UnmetTensors::notes() const {
  std::vector<std::string> out;
  for (const auto& [key, line] : lines_) {
    auto astray = std::find_if(line.begin(), line.end(), [](const auto& rank) {
      return rank.second.astray && !rank.second.meets;
    });
    if (!any_meets(line) || astray == line.end()) continue;
    out.push_back(astray->second.text + " this rank accesses by this line; others meet it");
  }
  return out;
}

}  // namespace stretto
